"""The shipped source manifests are whole, and add up to what their publisher says."""

import re
from pathlib import Path

import pytest

from fwconvert import records
from fwconvert.recipes import SourceManifest, Totals
from fwconvert.sources import catalog

FOLDER = Path(__file__).parents[2] / "manifests"
REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
VERSIONS = ["10B", "100B", "350B", "demo", "full"]


def test_the_names_are_those_of_the_files() -> None:
    assert catalog.names() == VERSIONS
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.json" for name in VERSIONS)


@pytest.mark.parametrize("name", VERSIONS)
def test_each_is_found_by_its_own_name(name: str) -> None:
    assert catalog.find(name).name == name
    assert catalog.find(str(FOLDER / f"{name}.json")) == catalog.find(name)


@pytest.mark.parametrize("name", VERSIONS)
def test_each_is_written_as_fwconvert_writes_records(name: str) -> None:
    raw = (FOLDER / f"{name}.json").read_bytes()
    manifest = records.decode(raw, SourceManifest, name)
    assert records.lines(records.fields(manifest)) == raw
    assert raw.count(b'{"path":') == sum(line.startswith(b'{"path":') for line in raw.splitlines())


@pytest.mark.parametrize("name", ["10B", "100B"])
def test_the_files_of_a_whole_list_add_up_to_the_totals(name: str) -> None:
    manifest = catalog.find(name)
    assert manifest.totals.files == len(manifest.files)
    assert manifest.totals.bytes == sum(file.bytes for file in manifest.files)


@pytest.mark.parametrize("name", ["10B", "100B"])
def test_every_listed_file_is_pinned_in_its_folder_and_in_order(name: str) -> None:
    manifest = catalog.find(name)
    assert [file.path for file in manifest.files] == sorted({file.path for file in manifest.files})
    for file in manifest.files:
        assert re.fullmatch(re.escape(manifest.folder) + r"/0\d\d_0000\d\.parquet", file.path)
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256 or "")
    assert len({file.sha256 for file in manifest.files}) == len(manifest.files)


@pytest.mark.parametrize(
    ("name", "folder", "totals"),
    [
        ("10B", "sample/10BT", Totals(14, 28_518_193_415, 9_672_101, 9_972_918_177)),
        ("100B", "sample/100BT", Totals(140, 286_394_522_604, 97_270_686)),
        ("350B", "sample/350BT", Totals(472, 998_102_051_512)),
        ("full", "data", Totals(2_410, 4_522_727_684_984, 1_525_223_056)),
    ],
)
def test_the_totals_are_the_published_ones(name: str, folder: str, totals: Totals) -> None:
    manifest = catalog.find(name)
    assert (manifest.dataset, manifest.revision) == ("HuggingFaceFW/fineweb-edu", REVISION)
    assert (manifest.folder, manifest.totals) == (folder, totals)


@pytest.mark.parametrize("name", ["350B", "full", "demo"])
def test_a_version_that_is_resolved_on_first_use_lists_no_files(name: str) -> None:
    assert catalog.find(name).files == ()


def test_the_demo_has_nothing_to_fetch() -> None:
    assert catalog.find("demo") == SourceManifest("demo", "demo", "1", "", (), Totals(0, 0))
