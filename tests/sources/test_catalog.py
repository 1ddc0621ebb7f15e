"""The promises of fwconvert.sources.catalog."""

import os
import re
import sys
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from privileges import bound_by_permissions

from fwconvert import records
from fwconvert.errors import ManifestError, UsageError
from fwconvert.recipes import SourceManifest, SourceShard, Totals
from fwconvert.sources import catalog

needs_links = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
needs_permissions = pytest.mark.skipif(
    os.name == "nt" or (sys.platform != "linux" and os.geteuid() == 0), reason="every folder may be read"
)


def make(root: Path, *files: str) -> Path:
    """Write files whose sizes tell them apart: the first has 1 byte, the second 2."""
    for number, name in enumerate(files, start=1):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    return root


def paths(pattern: Path | str) -> list[str]:
    return [file.path for file in catalog.local(str(pattern))[0].files]


def pinned(*files: str) -> SourceManifest:
    shards = tuple(SourceShard(path=path, bytes=1, sha256="0" * 64) for path in files)
    return SourceManifest("pinned", "somebody/something", "1", "", shards, Totals(len(files), len(files)))


def save(path: Path, manifest: SourceManifest) -> Path:
    path.write_bytes(records.lines(records.fields(manifest)))
    return path


# find


def test_a_name_finds_the_shipped_manifest() -> None:
    assert catalog.find("10B").name == "10B"
    assert len(catalog.find("100B").files) == 140


def test_a_path_finds_the_manifest_in_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = pinned("a.parquet")
    save(tmp_path / "mine.json", manifest)
    save(tmp_path / "without-ending", manifest)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for given in ("mine.json", "./mine.json", "./without-ending", str(tmp_path / "mine.json"), "~/mine.json"):
        assert catalog.find(given) == manifest


def test_a_file_in_the_current_folder_does_not_shadow_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "10B", pinned("a.parquet"))
    monkeypatch.chdir(tmp_path)
    assert catalog.find("10B").dataset == "HuggingFaceFW/fineweb-edu"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("10b", "10B"), ("FULL", "full"), ("100BT", "100B"), ("sample/10BT", "10B"), ("demos", "demo")],
)
def test_an_unknown_name_is_answered_with_the_names_and_the_likeliest(given: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.find(given)
    assert f"did you mean {meant}?" in str(caught.value)
    assert "10B, 100B, 350B, demo, full" in str(caught.value)


@pytest.mark.parametrize("given", ["zzz", "..", "../10B", "10B.json", "no/such.json", ".json"])
def test_what_is_no_version_is_a_usage_error(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="choose one of"):
        catalog.find(given)


def test_an_empty_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        catalog.find("")


@pytest.mark.parametrize("sha256", ["../../evil", "ab" * 31, "AB" * 32, ""])
def test_a_manifest_with_a_hash_that_is_none_is_refused(sha256: str, tmp_path: Path) -> None:
    # Fetched files are named by it.
    evil = msgspec.structs.replace(pinned("a.parquet"), files=(SourceShard("a.parquet", 1, sha256),))
    with pytest.raises(ManifestError, match="bad entry"):
        catalog.find(str(save(tmp_path / "evil.json", evil)))


@pytest.mark.parametrize("dataset", ["../evil", "a/b/c", "https://elsewhere/x", "a/..", "", "a b/c"])
def test_a_manifest_of_no_dataset_is_refused(dataset: str, tmp_path: Path) -> None:
    evil = msgspec.structs.replace(pinned("a.parquet"), dataset=dataset)
    with pytest.raises(ManifestError, match="dataset"):
        catalog.find(str(save(tmp_path / "evil.json", evil)))


def test_a_manifest_that_leads_outside_its_folder_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "evil.json", pinned("../../etc/passwd"))
    with pytest.raises(ManifestError, match="bad entry"):
        catalog.find(str(path))


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"format": "something else"}')
    with pytest.raises(ManifestError, match="another format"):
        catalog.find(str(path))


def test_an_installation_finds_the_manifests_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "site-packages" / "fwconvert" / "manifests"
    inside.mkdir(parents=True)
    (tmp_path / "site-packages" / "manifests").mkdir()
    save(inside / "wheel.json", pinned("a.parquet"))
    monkeypatch.setattr(resources, "files", lambda _: inside.parent)
    assert catalog.names() == ["wheel"]
    assert catalog.find("wheel") == pinned("a.parquet")


# local: a folder


def test_a_folder_means_every_parquet_file_below_it(tmp_path: Path) -> None:
    make(tmp_path, "b.parquet", "a/z.parquet", "a/b/c.parquet", "notes.txt", "a/LOUD.PARQUET")
    manifest, root = catalog.local(str(tmp_path))
    assert root == tmp_path
    assert manifest.files == (
        SourceShard("a/LOUD.PARQUET", 5),
        SourceShard("a/b/c.parquet", 3),
        SourceShard("a/z.parquet", 2),
        SourceShard("b.parquet", 1),
    )
    assert (manifest.name, manifest.dataset, manifest.revision) == ("local", "local", "")
    assert manifest.totals == Totals(files=4, bytes=11)
    manifest.check()


def test_the_order_is_that_of_code_points_over_whole_paths(tmp_path: Path) -> None:
    wanted = ["A.parquet", "a-b.parquet", "a.parquet", "a/b.parquet", "a0.parquet", "é.parquet"]
    make(tmp_path, *reversed(wanted))
    assert paths(tmp_path) == wanted


def test_hidden_files_and_folders_are_passed_over_but_the_root_may_be_hidden(tmp_path: Path) -> None:
    root = make(tmp_path / ".cache", "a.parquet", ".b.parquet", ".hidden/c.parquet")
    assert paths(root) == ["a.parquet"]
    assert paths(root / "*.parquet") == ["a.parquet"]
    assert paths(root / "**" / "*.parquet") == ["a.parquet"]
    assert paths(root / ".h*" / "*.parquet") == [".hidden/c.parquet"]


def test_a_folder_named_like_a_file_is_a_folder(tmp_path: Path) -> None:
    make(tmp_path, "table.parquet/part-0.parquet", "table.parquet/_SUCCESS")
    assert paths(tmp_path) == ["table.parquet/part-0.parquet"]
    assert paths(tmp_path / "*.parquet") == ["table.parquet/part-0.parquet"]
    assert paths(tmp_path / "table.parquet") == ["part-0.parquet"]


def test_the_root_is_absolute_though_the_source_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "data/a.parquet")
    monkeypatch.chdir(tmp_path)
    for pattern in ("data", "data/", "data/*", "./data/a.parquet", "data/../data"):
        manifest, root = catalog.local(pattern)
        assert root.is_absolute()
        assert [file.path for file in manifest.files] == ["a.parquet"]
        assert (root / "a.parquet").samefile("data/a.parquet")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "data/a.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert catalog.local("~/data")[1] == tmp_path / "data"
    assert paths("~/data/*.parquet") == ["a.parquet"]


def test_a_folder_that_exists_is_no_glob_though_it_has_brackets(tmp_path: Path) -> None:
    make(tmp_path, "run[1]/a.parquet", "run1/b.parquet")
    assert paths(tmp_path / "run[1]") == ["a.parquet"]
    assert paths(tmp_path / "run[1]" / "*.parquet") == ["a.parquet"]
    assert paths(tmp_path / "run[1]" / "a.parquet") == ["a.parquet"]
    assert paths(tmp_path / "run[12]") == ["run1/b.parquet"]


@needs_links
def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    make(tmp_path, "blobs/one", "data/a/real.parquet")
    (tmp_path / "data/link.parquet").symlink_to("../blobs/one")
    (tmp_path / "data/a/round").symlink_to("..")
    assert paths(tmp_path / "data") == ["a/real.parquet", "link.parquet"]
    assert paths(tmp_path / "data/**/*.parquet") == ["a/real.parquet", "link.parquet"]
    assert catalog.local(str(tmp_path / "data"))[0].totals == Totals(files=2, bytes=3)


@needs_links
def test_a_link_to_a_folder_may_be_the_source(tmp_path: Path) -> None:
    make(tmp_path, "real/a.parquet")
    (tmp_path / "link").symlink_to("real")
    assert paths(tmp_path / "link") == ["a.parquet"]
    assert paths(tmp_path / "l*") == ["link/a.parquet"]


# local: a glob


@pytest.mark.parametrize(
    ("pattern", "root", "wanted"),
    [
        ("d/*.parquet", "d", ["1.parquet", "2.parquet"]),
        ("d/?.parquet", "d", ["1.parquet", "2.parquet"]),
        ("d/[2-9].parquet", "d", ["2.parquet"]),
        ("d/[!2].parquet", "d", ["1.parquet"]),
        ("d/**/*.parquet", "d", ["1.parquet", "2.parquet", "x/3.parquet", "x/y/4.parquet"]),
        ("d/**", "d", ["1.parquet", "2.parquet", "x/3.parquet", "x/y/4.parquet"]),
        ("d/**/**/4*", "d", ["x/y/4.parquet"]),
        ("d/**/y/*.parquet", "d", ["x/y/4.parquet"]),
        ("d/x*", "d", ["x/3.parquet", "x/y/4.parquet"]),
        ("*/x/*.parquet", ".", ["d/x/3.parquet"]),
        ("*/1.parquet", ".", ["d/1.parquet"]),
        ("d/*.pq", "d", ["5.pq"]),
        ("d/[1-5].p*", "d", ["1.parquet", "2.parquet"]),
    ],
)
def test_a_glob_starts_from_its_longest_plain_part(
    pattern: str, root: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "d/1.parquet", "d/2.parquet", "d/x/3.parquet", "d/x/y/4.parquet", "d/5.pq", "d/6.txt")
    monkeypatch.chdir(tmp_path)
    for given in (pattern, str(tmp_path / pattern)):
        manifest, found_root = catalog.local(given)
        assert [file.path for file in manifest.files] == wanted
        assert found_root == tmp_path / root


def test_a_folder_and_the_glob_of_its_files_are_the_same_source(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet", "b/c.parquet")
    assert catalog.local(str(tmp_path)) == catalog.local(str(tmp_path / "**" / "*.parquet"))


# local: a file


def test_a_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    make(tmp_path, "documents", ".hidden", "odd[*].parquet")
    for name in ("documents", ".hidden", "odd[*].parquet"):
        manifest, root = catalog.local(str(tmp_path / name))
        assert root == tmp_path
        assert [file.path for file in manifest.files] == [name]


# local: what cannot be


def test_a_source_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for pattern in ("nothing", "nothing/a.parquet", "nothing/*.parquet"):
        with pytest.raises(UsageError, match="does not exist") as caught:
            catalog.local(str(tmp_path / pattern))
        assert str(tmp_path / "nothing") in str(caught.value)


def test_a_source_without_text_says_which_other_files_there_are(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b/c.csv", ".hidden.parquet", "cache-0.arrow", "dataset_info.json")
    others_there = "1 .txt, 1 .csv, 1 .arrow, 1 .json"
    kinds = {"": others_there, "*": others_there, "*.txt.parquet": "none", "b": "1 .csv"}
    for pattern, others in kinds.items():
        wanted = r"no \.parquet files" if pattern.endswith(".parquet") else "no parquet, jsonl or Arrow files"
        with pytest.raises(UsageError, match=wanted) as caught:
            catalog.local(str(tmp_path / pattern))
        (told,) = re.findall(r"^  other files +(.*)$", str(caught.value), re.MULTILINE)
        assert sorted(told.split(", ")) == sorted(others.split(", "))


def test_an_empty_source_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.parquet")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="empty"):
        catalog.local("")


@pytest.mark.skipif(os.name == "nt", reason="Windows refuses such names itself")
@pytest.mark.parametrize("name", ["back\\slash.parquet", "new\nline.parquet", "c:drive.parquet"])
def test_a_name_that_no_manifest_can_keep_is_refused(name: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    with pytest.raises(UsageError, match="rename it") as caught:
        catalog.local(str(tmp_path))
    assert "\nline" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps names that are not UTF-8")
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    make(tmp_path, os.fsdecode(b"\xff.parquet"))
    with pytest.raises(UsageError, match="rename it") as caught:
        catalog.local(str(tmp_path))
    str(caught.value).encode()


@needs_links
def test_a_link_that_leads_nowhere_is_an_error_and_not_a_missing_document(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to("gone")
    with pytest.raises(UsageError, match="cannot be read"):
        catalog.local(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    for pattern in (tmp_path, tmp_path / "pipe.parquet"):
        with pytest.raises(UsageError, match="not a regular file"):
            catalog.local(str(pattern))


@needs_permissions
def test_a_folder_that_may_not_be_read_is_an_error_and_not_empty(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet", "locked/b.parquet")
    (tmp_path / "locked").chmod(0)
    try:
        for pattern in (tmp_path, tmp_path / "**" / "*.parquet", tmp_path / "locked" / "b.parquet"):
            with bound_by_permissions(), pytest.raises(UsageError, match="Permission denied"):
                catalog.local(str(pattern))
    finally:
        (tmp_path / "locked").chmod(0o700)


# locate


def test_files_are_located_by_path_and_then_by_bare_name(tmp_path: Path) -> None:
    make(tmp_path, "sample/1.parquet", "1.parquet", "2.parquet")
    manifest = pinned("sample/1.parquet", "sample/2.parquet", "sample/3.parquet")
    assert catalog.locate(manifest, tmp_path) == {
        "sample/1.parquet": tmp_path / "sample/1.parquet",
        "sample/2.parquet": tmp_path / "2.parquet",
    }


def test_a_bare_name_that_two_files_share_locates_neither(tmp_path: Path) -> None:
    make(tmp_path, "1.parquet", "b/1.parquet")
    assert catalog.locate(pinned("a/1.parquet", "b/1.parquet"), tmp_path) == {
        "b/1.parquet": tmp_path / "b/1.parquet"
    }


def test_folders_are_no_files_and_a_missing_root_holds_none(tmp_path: Path) -> None:
    (tmp_path / "1.parquet").mkdir()
    assert catalog.locate(pinned("1.parquet"), tmp_path) == {}
    assert catalog.locate(pinned("1.parquet"), tmp_path / "gone") == {}


def test_nothing_is_located_outside_the_root(tmp_path: Path) -> None:
    make(tmp_path, "secret", "root/a.parquet")
    with pytest.raises(ManifestError):
        catalog.locate(pinned("../secret"), tmp_path / "root")
