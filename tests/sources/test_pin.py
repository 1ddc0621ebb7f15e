"""`fwconvert pin`: the list of a dataset's files, so exact that a run is about these bytes and no others."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import corpus
import hub_runs
import pytest
import runner
from hub_server import COMMIT, REPO, HubServer
from runner import assert_tidy_end

from fwconvert.recipes import SourceManifest, Totals
from fwconvert.sources import catalog

CANARY = "hf_canaryInTheCoalMine0123456789abcd"
FOLDER = "sample/10BT"
RECIPE = ["--tokenizer", "bytes", "--shard-tokens", "2000", "--workers", "1"]
NOWHERE = "http://127.0.0.1:9"  # nobody listens there


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for number in range(5):
        corpus.write(folder / FOLDER / f"{number:03d}_00000.parquet", corpus.documents(1000 * number, 20))
    corpus.write(folder / "data/CC-MAIN-2013-20/000_00000.parquet", ["of another folder"])
    (folder / "README.md").write_text("a dataset")
    (folder / FOLDER / "notes.txt").write_text("no parquet")
    return folder


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer(repository, page_size=2) as hub:
        yield hub


def pin(*words: object, endpoint: str = NOWHERE, **settings: str) -> "CompletedProcess[str]":
    return hub_runs.run(["pin", *map(str, words)], endpoint, **settings)


def assert_lists(manifest: SourceManifest, root: Path, *paths: str) -> None:
    """Fail unless the manifest has just these files, as they lie below `root`."""
    contents = {path: (root / path).read_bytes() for path in paths}
    found = [(file.path, file.bytes, file.sha256) for file in manifest.files]
    assert found == [
        (path, len(content), hashlib.sha256(content).hexdigest()) for path, content in contents.items()
    ]
    assert manifest.totals == Totals(len(paths), sum(map(len, contents.values())))


def parquet(root: Path, folder: str = "") -> list[str]:
    """Return the paths of the parquet files below a folder, in order."""
    return sorted(path.relative_to(root).as_posix() for path in (root / folder).rglob("*.parquet"))


def assert_refused(ended: "CompletedProcess[str]", *words: str, code: int = 2) -> None:
    """Fail unless the command ended so, and said these words as an error of ours."""
    assert_tidy_end(ended, code)
    assert ended.stdout == ""
    assert ended.stderr.startswith("fwconvert")
    for word in words:
        assert word in ended.stderr


# A dataset on the hub


def test_a_dataset_is_pinned_at_its_commit_with_all_its_files(
    hub: HubServer, repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    ended = pin(REPO, FOLDER, "-o", file, endpoint=hub.endpoint)
    assert_tidy_end(ended, 0)
    for word in (REPO, COMMIT, str(file), "5", f"fwconvert --version {file}"):
        assert word in ended.stdout
    assert ended.stderr == ""
    manifest = catalog.find(str(file))
    assert (manifest.name, manifest.dataset) == ("mine", REPO)
    assert (manifest.revision, manifest.folder) == (COMMIT, FOLDER)
    assert_lists(manifest, repository, *parquet(repository, FOLDER))
    # For people and for diff: a line for each file.
    lines = file.read_text().splitlines()
    assert all(sum(path in line for line in lines) == 1 for path in parquet(repository, FOLDER))
    assert hub_runs.bodies(hub.log) == []


def test_without_a_path_all_of_the_repository_is_pinned(
    hub: HubServer, repository: Path, tmp_path: Path
) -> None:
    assert_tidy_end(pin(REPO, "-o", tmp_path / "all.json", endpoint=hub.endpoint), 0)
    assert_lists(catalog.find(str(tmp_path / "all.json")), repository, *parquet(repository))


def test_a_branch_is_pinned_at_the_commit_that_it_means_now(repository: Path, tmp_path: Path) -> None:
    other = "f" * 40
    with HubServer(repository, branches={"main": COMMIT, "refs/pr/1": other}) as hub:
        for revision in ("refs/pr/1", other):
            words = [REPO, f"/{FOLDER}/", "--revision", revision, "-o", tmp_path / "m.json"]
            assert_tidy_end(pin(*words, endpoint=hub.endpoint), 0)
            manifest = catalog.find(str(tmp_path / "m.json"))
            assert (manifest.revision, manifest.folder) == (other, FOLDER)
    listings = [seen.path for seen in hub.log if "/tree/" in seen.path]
    assert len(listings) == 2
    assert all(f"/tree/{other}/" in path for path in listings), "listed by the branch, which may move"


def test_a_run_converts_what_was_pinned(hub: HubServer, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    assert_tidy_end(pin(REPO, FOLDER, "-o", file, endpoint=hub.endpoint), 0)
    words = ["--version", str(file), "--out", str(tmp_path / "out"), *RECIPE]
    assert_tidy_end(hub_runs.run(words, hub.endpoint), 0)
    beside = ["--source", str(repository), "--out", str(tmp_path / "beside")]
    assert_tidy_end(hub_runs.run(["--version", str(file), *beside, *RECIPE], NOWHERE), 0)
    assert runner.tree(tmp_path / "out") == runner.tree(tmp_path / "beside")
    fetched = {seen.path for seen in hub.log if "/resolve/" in seen.path}
    assert fetched == {f"/datasets/{REPO}/resolve/{COMMIT}/{path}" for path in parquet(repository, FOLDER)}


def test_troubles_that_pass_do_not_keep_anybody_from_pinning(hub: HubServer, tmp_path: Path) -> None:
    hub.fault("status", on="hub", path="/revision/", status=503)
    hub.fault("reset", on="hub", path="/tree/", after=-1)
    hub.fault("status", on="hub", path="cursor=2", status=429, headers={"Retry-After": "0"})
    ended = pin(REPO, FOLDER, "-o", tmp_path / "m.json", endpoint=hub.endpoint)
    assert_tidy_end(ended, 0)
    assert hub.faults_left == 0
    assert len(catalog.find(str(tmp_path / "m.json")).files) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["somebody/something"], ["the repository does not exist", "somebody/something", "hf auth login"]),
        ([REPO, "--revision", "mian"], ["no such revision", REPO, "mian"]),
        ([REPO, "sample/10TB"], ["no such", REPO, "sample/10TB"]),
    ],
)
def test_what_the_hub_does_not_have_is_said_and_nothing_is_written(
    hub: HubServer, tmp_path: Path, words: list[str], said: list[str]
) -> None:
    ended = pin(*words, "-o", tmp_path / "m.json", endpoint=hub.endpoint)
    assert_refused(ended, *said, hub.endpoint, "->", code=1)
    assert list(tmp_path.iterdir()) == []


def test_offline_mode_is_said_and_nothing_is_asked(hub: HubServer, tmp_path: Path) -> None:
    ended = pin(REPO, "-o", tmp_path / "m.json", endpoint=hub.endpoint, HF_HUB_OFFLINE="1")
    assert_refused(ended, "offline", "HF_HUB_OFFLINE", REPO, code=1)
    assert hub.log == []


def test_a_token_opens_a_private_repository_and_is_written_nowhere(repository: Path, tmp_path: Path) -> None:
    with HubServer(repository, token=CANARY) as hub:
        refused = pin(REPO, FOLDER, "-o", tmp_path / "m.json", endpoint=hub.endpoint)
        assert_refused(refused, "private", "hf auth login", "HF_TOKEN", code=1)
        settings = {"HF_TOKEN": CANARY, "HF_HOME": str(tmp_path / "home")}
        ended = pin(REPO, FOLDER, "-o", tmp_path / "m.json", endpoint=hub.endpoint, **settings)
        wrong = pin(REPO, "no/such", "-o", tmp_path / "n.json", endpoint=hub.endpoint, **settings)
    assert_tidy_end(ended, 0)
    assert_tidy_end(wrong, 1)
    assert CANARY not in f"{ended.stdout}{ended.stderr}{wrong.stdout}{wrong.stderr}"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert tmp_path / "m.json" in written
    assert not [path for path in written if CANARY.encode() in path.read_bytes()]
    assert {seen.authorization for seen in hub.log} == {None, f"Bearer {CANARY}"}


# A folder on this machine


def test_a_folder_is_pinned_without_any_hub(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    ended = pin(repository, "-o", file)
    assert_tidy_end(ended, 0)
    assert f"fwconvert --version {file} --source DIR" in ended.stdout
    assert "hashing 1 of 6" in ended.stderr
    manifest = catalog.find(str(file))
    assert (manifest.name, manifest.dataset, manifest.revision) == ("here", "local", "")
    assert_lists(manifest, repository, *parquet(repository))


def test_a_run_of_a_pinned_folder_needs_to_be_told_where_it_is_and_proves_it(
    repository: Path, tmp_path: Path
) -> None:
    file, folder = tmp_path / "here.json", tmp_path / "copy"
    for path in parquet(repository, FOLDER):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((repository / path).read_bytes())
    assert_tidy_end(pin(folder, "-o", file), 0)
    run = ["--version", str(file), "--out", str(tmp_path / "out"), *RECIPE]
    assert_refused(hub_runs.run(run, NOWHERE), "not on the hub", "--source DIR")
    assert not (tmp_path / "out").exists()
    assert_tidy_end(hub_runs.run([*run, "--source", str(folder)], NOWHERE), 0)
    changed = folder / parquet(folder)[0]
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    elsewhere = [*run[:2], "--out", str(tmp_path / "again"), *RECIPE, "--source", str(folder)]
    ended = hub_runs.run(elsewhere, NOWHERE)
    assert_tidy_end(ended, 1)
    assert changed.name in ended.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_hashing_and_nothing_is_written(tmp_path: Path, number: signal.Signals) -> None:
    with (tmp_path / "large.parquet").open("wb") as large:
        large.truncate(2**34)  # a hole: it takes long to hash, and no space
    with hub_runs.running(["pin", str(tmp_path), "-o", str(tmp_path / "m.json")], NOWHERE) as process:
        assert process.stderr is not None
        assert "hashing 1 of 1" in process.stderr.readline()
        process.send_signal(number)
        ended = runner.finish(process)
    assert "stopped" in ended.stderr
    assert not (tmp_path / "m.json").exists()
    assert_tidy_end(ended, 128 + number)


# Arguments


def test_a_file_that_is_no_manifest_is_not_overwritten(hub: HubServer, tmp_path: Path) -> None:
    contents = {"notes.txt": "dear diary", "other.json": '{"format": "something else"}', "empty.json": ""}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
        ended = pin(REPO, FOLDER, "-o", tmp_path / name, endpoint=hub.endpoint)
        assert_refused(ended, "is not a source manifest", "choose another -o", str(tmp_path / name))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == contents


def test_a_manifest_is_replaced_by_a_newer_one(hub: HubServer, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    assert_tidy_end(pin(repository / "data", "-o", file), 0)
    assert_tidy_end(pin(REPO, FOLDER, "-o", file, endpoint=hub.endpoint), 0)
    assert catalog.find(str(file)).dataset == REPO
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_neither_a_folder_nor_a_dataset_is_explained(tmp_path: Path) -> None:
    for given in ("nothing", "./no/such", "/no/such", "a/b/c", str(tmp_path / "missing")):
        ended = pin(given, "-o", tmp_path / "m.json")
        assert_refused(ended, "neither a local folder nor a dataset", "owner/name")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["owner/", "/name", "some body/thing", "owner/name?x", "owner/..", "a#b/c"])
def test_a_name_that_no_dataset_can_have_is_explained(hub: HubServer, tmp_path: Path, given: str) -> None:
    ended = pin(given, "-o", tmp_path / "m.json", endpoint=hub.endpoint)
    assert_refused(ended, "as owner/name", given)
    assert hub.log == []


def test_a_folder_has_neither_a_path_inside_nor_a_revision(repository: Path, tmp_path: Path) -> None:
    for more in (["sample"], ["--revision", "main"]):
        ended = pin(repository, *more, "-o", tmp_path / "m.json")
        assert_refused(ended, "neither PATH nor --revision", str(repository))


def test_a_folder_without_text_is_explained(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no parquet")
    ended = pin(tmp_path, "-o", tmp_path / "m.json")
    assert_refused(ended, "no parquet, jsonl or Arrow files", str(tmp_path))


def test_an_output_that_cannot_be_is_explained(hub: HubServer, tmp_path: Path) -> None:
    missing = pin(REPO, "-o", tmp_path / "no" / "m.json", endpoint=hub.endpoint)
    assert_refused(missing, "no such folder", str(tmp_path / "no"))
    folder = pin(REPO, "-o", tmp_path, endpoint=hub.endpoint)
    assert_refused(folder, "is not a source manifest", str(tmp_path))
    assert hub.log == [], "the hub was asked, or files were hashed, in vain"


@pytest.mark.parametrize("words", [[], [REPO], ["-o", "m.json"], [REPO, "a", "b", "-o", "m.json"]])
def test_words_that_make_no_command_are_explained(words: list[str]) -> None:
    ended = pin(*words)
    assert_tidy_end(ended, 2)
    assert "fwconvert pin" in ended.stderr
    assert len(ended.stderr.splitlines()) <= 3


def test_a_setting_that_the_client_cannot_use_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    ended = pin(REPO, "-o", tmp_path / "m.json", HF_HUB_DOWNLOAD_TIMEOUT="2.5")
    assert_refused(ended, "HF_", "2.5")


# Manifests by others


@pytest.mark.parametrize("part", [{"path": "../x.parquet"}, {"sha256": "../../x"}, {"bytes": -1}])
def test_a_manifest_that_leads_outside_is_refused_before_anything_is_asked(
    hub: HubServer, tmp_path: Path, part: dict[str, object]
) -> None:
    file = {"path": "a.parquet", "bytes": 1, "sha256": "ab" * 32, **part}
    evil = {
        "format": "fwconvert source manifest 1",
        "name": "evil",
        "dataset": REPO,
        "revision": COMMIT,
        "folder": "",
        "files": [file],
        "totals": {"files": 1, "bytes": 1},
    }
    (tmp_path / "evil.json").write_text(json.dumps(evil))
    out = tmp_path / "below" / "out"
    words = ["--version", str(tmp_path / "evil.json"), "--out", str(out), *RECIPE]
    assert_refused(hub_runs.run(words, hub.endpoint), "bad entry", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.json"]
    assert hub.log == []
