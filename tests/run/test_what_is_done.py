"""What of a run can be believed: a real run, damaged in one place at a time."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import receipt_files

from fwconvert.errors import Stopped
from fwconvert.options import Options
from fwconvert.recipes import Recipe
from fwconvert.run.convert import convert
from fwconvert.run.request import recipe as make_recipe
from fwconvert.run.resume import Found, find_done
from fwconvert.store import layout, sessions
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Receipt

# Documents of these many tokens (the text and its EOT), and what becomes of them in shards of 100 tokens:
SOURCES = {
    "a.parquet": [30] * 12,  # validation, two shards, a tail of 60
    "b.parquet": [30],  # a tail of 30
    "c.parquet": [40] * 5,  # two shards and no tail at all
    "d.parquet": [50] * 5,  # two shards, a tail of 50
}
# The join: 60 of a, 30 of b and 10 of d; then 40 of d.
FIRST_JOINED, SECOND_JOINED = (f"edu_fineweb_train_0000{len(SOURCES)}_00{number}.bin" for number in (0, 1))


@dataclass(frozen=True)
class Run:
    folder: LocalStore
    recipe: Recipe

    def look(self, unclean: set[str] | None = None) -> Found:
        return find_done(self.folder, self.recipe, frozenset(unclean or ()))

    @property
    def session(self) -> str:
        (only,) = sessions.all_of(self.folder)
        return only.id

    def receipt(self, source: str) -> Path:
        return self.folder.local(layout.receipt(layout.job_key(source)))

    def withdrawn(self, found: Found) -> list[Path]:
        return [self.folder.local(name) for name in found.withdrawn]

    def tail(self, source: str) -> Path:
        return self.folder.local(layout.tail(layout.job_key(source)))

    def tail_index(self, source: str) -> Path:
        return self.folder.local(layout.tail_index(layout.job_key(source)))


def convert_corpus(base: Path, sources: dict[str, list[int]], poison: bool) -> Run:
    root = base / "sources"
    root.mkdir()
    for path, lengths in sources.items():
        texts = [f"{row} ".ljust(length - 1, "x") for row, length in enumerate(lengths)]
        pq.write_table(pa.table({"text": texts}), root / path)
    if poison:
        (root / "z.parquet").write_bytes(b"not parquet")
    recipe = make_recipe(source=str(root), tokenizer="bytes", shard_tokens=100, last="keep")
    result = convert(recipe, base / "out", Options(workers=2, check_disk=False))
    assert result.complete is not poison
    return Run(LocalStore(base / "out"), recipe)


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return convert_corpus(tmp_path_factory.mktemp("finished"), SOURCES, poison=False)


@pytest.fixture(scope="module")
def unjoined_once(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that waits for its last source, so that the tails are not joined."""
    return convert_corpus(tmp_path_factory.mktemp("unjoined"), SOURCES, poison=True)


def copy_of(run: Run, place: Path) -> Run:
    shutil.copytree(run.folder.root, place)
    return Run(LocalStore(place), run.recipe)


@pytest.fixture
def finished(finished_once: Run, tmp_path: Path) -> Run:
    return copy_of(finished_once, tmp_path / "out")


@pytest.fixture
def unjoined(unjoined_once: Run, tmp_path: Path) -> Run:
    return copy_of(unjoined_once, tmp_path / "out")


def flip_last_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def turn_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


# Damage that a size shows, and so must be noticed whatever the session was.
VISIBLE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a folder": turn_into_a_folder,
}
visible = pytest.mark.parametrize("damage", VISIBLE.values(), ids=VISIBLE.keys())


def assert_withdrawn(found: Found, run: Run, sources: set[str], damaged: str) -> None:
    """The receipts of these sources and no others are withdrawn; it is told why."""
    assert set(found.jobs) == set(SOURCES) - sources
    assert {run.receipt(source) for source in sources} <= set(run.withdrawn(found))
    assert set(found.known_sources) == sources
    for source in sources:
        assert any(source in problem for problem in found.problems)
        made = receipt_files.read(run.receipt(source), Receipt, run.recipe.recipe_id)
        assert found.known_sources[source] == made.source_sha256
    assert any(damaged in problem for problem in found.problems)


def test_a_finished_run_is_believed_as_a_whole(finished: Run) -> None:
    for unclean in (set(), {finished.session}):
        found = finished.look(unclean)
        assert list(found.jobs) == list(SOURCES)
        assert list(found.joins) == [FIRST_JOINED, SECOND_JOINED]
        assert (found.withdrawn, found.problems, found.known_sources) == ([], [], {})


def test_the_tails_of_a_finished_run_are_covered_and_gone(finished: Run) -> None:
    found = finished.look()
    tails = {at: found.jobs[source].tail.tokens for at, source in enumerate(SOURCES)}

    assert tails == {0: 60, 1: 30, 2: 0, 3: 50}
    assert all(found.covered[at] == tokens for at, tokens in tails.items())
    assert list(finished.folder.local(layout.TAILS).iterdir()) == []


def test_an_unjoined_run_is_believed_with_its_tails(unjoined: Run) -> None:
    found = unjoined.look({unjoined.session})

    assert list(found.jobs) == list(SOURCES)
    assert (found.joins, found.withdrawn, found.problems) == ({}, [], [])
    assert not found.covered
    kept = {path.name for path in unjoined.folder.local(layout.TAILS).iterdir()}
    assert kept == {
        place(source).name
        for source in ("a.parquet", "b.parquet", "d.parquet")
        for place in (unjoined.tail, unjoined.tail_index)
    }


def test_looking_changes_nothing(finished: Run) -> None:
    (finished.folder.root / FIRST_JOINED).unlink()
    flip_last_bit(finished.receipt("c.parquet"))

    def state() -> dict[str, tuple[bytes, int]]:
        files = (path for path in finished.folder.root.rglob("*") if path.is_file())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    finished.look({finished.session})

    assert state() == before


def test_a_run_that_has_not_begun_has_nothing_to_believe(finished: Run, tmp_path: Path) -> None:
    assert find_done(LocalStore(tmp_path / "missing"), finished.recipe) == Found()


@visible
@pytest.mark.parametrize("shard", ["edu_fineweb_val_00000_000.bin", "edu_fineweb_train_00000_002.bin"])
def test_a_job_with_a_damaged_shard_is_done_again(
    finished: Run, damage: Callable[[Path], object], shard: str
) -> None:
    damage(finished.folder.local(shard))

    found = finished.look()

    assert_withdrawn(found, finished, {"a.parquet"}, shard)
    assert list(found.joins) == [FIRST_JOINED, SECOND_JOINED]


@visible
def test_a_job_with_a_damaged_index_is_done_again(finished: Run, damage: Callable[[Path], object]) -> None:
    index = finished.folder.local(layout.index("edu_fineweb_train_00002_001.bin"))
    damage(index)

    assert_withdrawn(finished.look(), finished, {"c.parquet"}, index.name)


@pytest.mark.parametrize("place", ["shard", "index"])
def test_damage_that_no_size_shows_is_noticed_after_a_session_was_cut_off(finished: Run, place: str) -> None:
    path = finished.folder.local(getattr(layout, place)("edu_fineweb_train_00003_000.bin"))
    flip_last_bit(path)

    found = finished.look({"another", finished.session})

    assert_withdrawn(found, finished, {"d.parquet"}, path.name)
    assert any("sha256" in problem for problem in found.problems)


def test_a_file_that_was_written_to_after_its_receipt_is_hashed(finished: Run) -> None:
    flip_last_bit(finished.folder.local("edu_fineweb_train_00003_000.bin"))

    found = finished.look({"another session"})

    assert_withdrawn(found, finished, {"d.parquet"}, "edu_fineweb_train_00003_000.bin")


def test_a_file_that_is_only_newer_than_its_receipt_is_found_right(finished: Run) -> None:
    shard = finished.folder.local("edu_fineweb_train_00003_000.bin")
    shard.touch()

    found = finished.look()

    assert (found.problems, set(found.jobs)) == ([], set(SOURCES))
    name = layout.receipt(layout.job_key("d.parquet"))
    assert found.proven == {name: shard.stat().st_mtime_ns}


def test_damage_that_neither_size_nor_time_shows_is_noticed_if_everything_is_hashed(finished: Run) -> None:
    shard = finished.folder.local("edu_fineweb_train_00003_000.bin")
    before = shard.stat()
    flip_last_bit(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert finished.look().problems == []
    found = find_done(finished.folder, finished.recipe, rehash=True)
    assert_withdrawn(found, finished, {"d.parquet"}, shard.name)


def test_hashing_stops_when_somebody_wants_it_to(finished: Run) -> None:
    def stop(_hashed: int, everything: int) -> None:
        assert everything > 0
        raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        find_done(finished.folder, finished.recipe, rehash=True, tick=stop)


def test_hashing_tells_how_far_it_is(finished: Run) -> None:
    told: list[tuple[int, int]] = []
    find_done(finished.folder, finished.recipe, rehash=True, tick=lambda *far: told.append(far))
    sizes = [path.stat().st_size for path in finished.folder.root.rglob("edu_fineweb_*") if path.is_file()]

    assert told
    assert max(everything for _, everything in told) <= sum(sizes)
    assert all(hashed <= everything for hashed, everything in told)


@visible
def test_a_damaged_joined_shard_takes_the_jobs_with_it_whose_tails_are_gone(
    finished: Run, damage: Callable[[Path], object]
) -> None:
    damage(finished.folder.local(FIRST_JOINED))

    found = finished.look()

    assert_withdrawn(found, finished, {"a.parquet", "b.parquet", "d.parquet"}, FIRST_JOINED)
    assert finished.folder.local(layout.join_receipt(FIRST_JOINED)) in finished.withdrawn(found)
    assert list(found.joins) == [SECOND_JOINED]


def test_a_job_that_gave_nothing_to_a_damaged_joined_shard_is_still_done(finished: Run) -> None:
    finished.folder.local(SECOND_JOINED).unlink()

    found = finished.look()

    assert_withdrawn(found, finished, {"d.parquet"}, SECOND_JOINED)
    assert list(found.joins) == [FIRST_JOINED]


def test_a_damaged_index_of_a_joined_shard_counts_like_the_shard(finished: Run) -> None:
    index = finished.folder.local(layout.index(FIRST_JOINED))
    flip_last_bit(index)

    sources = {"a.parquet", "b.parquet", "d.parquet"}
    assert_withdrawn(finished.look({finished.session}), finished, sources, index.name)


def test_a_damaged_joined_shard_of_a_session_that_was_cut_off_is_noticed(finished: Run) -> None:
    flip_last_bit(finished.folder.local(SECOND_JOINED))

    assert_withdrawn(finished.look({finished.session}), finished, {"d.parquet"}, SECOND_JOINED)


@pytest.mark.parametrize("spoil", [b"", b"\0" * 500, b"{}"])
def test_a_damaged_receipt_of_a_joined_shard_is_withdrawn(finished: Run, spoil: bytes) -> None:
    path = finished.folder.local(layout.join_receipt(SECOND_JOINED))
    path.write_bytes(spoil)

    found = finished.look()

    assert path in finished.withdrawn(found)
    assert list(found.joins) == [FIRST_JOINED]
    assert set(found.jobs) == {"a.parquet", "b.parquet", "c.parquet"}


def test_a_missing_receipt_of_a_joined_shard_leaves_its_tails_uncovered(finished: Run) -> None:
    finished.folder.local(layout.join_receipt(FIRST_JOINED)).unlink()

    found = finished.look()

    assert list(found.joins) == [SECOND_JOINED]
    assert set(found.jobs) == {"c.parquet"}


@pytest.mark.parametrize("spoil", [b"", b"\0" * 500, b"{}", b"[]", b'{"format":"fwconvert receipt 2"}'])
def test_a_damaged_receipt_is_withdrawn_and_named(finished: Run, spoil: bytes) -> None:
    path = finished.receipt("b.parquet")
    path.write_bytes(spoil)

    found = finished.look()

    assert finished.withdrawn(found) == [path]
    assert set(found.jobs) == set(SOURCES) - {"b.parquet"}
    assert any(str(path) in problem for problem in found.problems)


def test_a_receipt_of_another_recipe_is_withdrawn(finished: Run) -> None:
    other = Recipe(finished.recipe.source, msgspec.structs.replace(finished.recipe.rules, shard_tokens=101))

    found = find_done(finished.folder, other)

    assert found.jobs == {}
    assert found.joins == {}
    assert set(finished.withdrawn(found)) == {finished.receipt(source) for source in SOURCES} | {
        finished.folder.local(layout.join_receipt(name)) for name in (FIRST_JOINED, SECOND_JOINED)
    }
    assert all("another recipe" in problem for problem in found.problems)


def test_a_missing_receipt_is_a_job_not_done_and_no_problem(finished: Run) -> None:
    finished.receipt("b.parquet").unlink()

    found = finished.look()

    assert set(found.jobs) == set(SOURCES) - {"b.parquet"}
    assert (found.withdrawn, found.problems) == ([], [])


def test_a_receipt_under_the_name_of_another_job_is_not_believed(unjoined: Run) -> None:
    # A job is its source, never a file's name: this would count the documents of c twice and lose those of a.
    shutil.copy(unjoined.receipt("c.parquet"), unjoined.receipt("a.parquet"))

    found = unjoined.look()

    assert "a.parquet" not in found.jobs
    assert unjoined.receipt("a.parquet") in unjoined.withdrawn(found)


@visible
@pytest.mark.parametrize("place", ["tail", "tail_index"])
def test_a_job_with_a_damaged_tail_is_done_again(
    unjoined: Run, damage: Callable[[Path], object], place: str
) -> None:
    path = getattr(unjoined, place)("b.parquet")
    damage(path)

    assert_withdrawn(unjoined.look(), unjoined, {"b.parquet"}, path.name)


@pytest.mark.parametrize("place", ["tail", "tail_index"])
def test_damage_to_a_tail_that_no_size_shows_is_noticed_before_it_is_joined(
    unjoined: Run, place: str
) -> None:
    # A joined shard gets a hash that fits it, so nobody would notice later.
    path = getattr(unjoined, place)("d.parquet")
    flip_last_bit(path)

    assert_withdrawn(unjoined.look(), unjoined, {"d.parquet"}, path.name)
    assert_withdrawn(unjoined.look({unjoined.session}), unjoined, {"d.parquet"}, path.name)


def test_what_is_wrong_is_told_once_for_each_file_and_in_words(finished: Run) -> None:
    finished.folder.local("edu_fineweb_train_00002_000.bin").unlink()
    cut = finished.folder.local("edu_fineweb_train_00003_000.bin")
    cut.write_bytes(cut.read_bytes()[:1000])

    assert finished.look().problems == [
        "edu_fineweb_train_00002_000.bin is missing",
        "c.parquet will be converted again",
        "edu_fineweb_train_00003_000.bin has 1,000 bytes instead of 1,224",
        "d.parquet will be converted again",
    ]


def test_join_receipts_say_where_every_token_comes_from(finished: Run) -> None:
    first, second = (
        receipt_files.read(
            finished.folder.local(layout.join_receipt(name)), JoinReceipt, finished.recipe.recipe_id
        )
        for name in (FIRST_JOINED, SECOND_JOINED)
    )

    assert first.shard.segments == ((0, 0), (1, 60), (3, 90))
    assert second.shard.segments == ((3, 0),)
    assert (first.shard.tokens, second.shard.tokens) == (100, 40)
