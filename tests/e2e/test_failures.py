"""What cannot be done is left out and named; what is not to blame goes on; mended, the bytes are equal."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runner
from runner import PRIVATE, litter, shards, state, tree

from fwconvert.errors import UsageError
from fwconvert.inspection.verify import verify

RECIPE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000}

FILES = 5
BAD = "02.parquet"

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="wants /proc, or tmpfs and the right to mount"
)


@dataclass(frozen=True)
class Undisturbed:
    """A finished run."""

    sources: Path
    tree: dict[str, str]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("golden")
    sources = corpus.equal_sources(folder / "sources", files=FILES, rows=40)
    assert runner.convert(sources, folder / "out", **RECIPE).complete
    return Undisturbed(sources, tree(folder / "out"))


@pytest.fixture
def sources(golden: Undisturbed, tmp_path: Path) -> Path:
    """Sources of one's own, to be damaged."""
    return Path(shutil.copytree(golden.sources, tmp_path / "sources"))


def quarantined(out: Path) -> list[str]:
    """Return the sources in quarantine, by the names of their records."""
    return sorted(path.name.partition(".parquet")[0] for path in out.glob(f"{PRIVATE}/quarantine/*"))


def done(out: Path) -> list[str]:
    """Return the sources that have a receipt."""
    return sorted(path.name.partition(".parquet")[0] for path in out.glob(f"{PRIVATE}/receipts/*"))


def assert_all_but_one_finished(ended: "subprocess.CompletedProcess[str]", out: Path) -> None:
    runner.assert_tidy_end(ended, 1)
    assert BAD in ended.stderr
    assert (quarantined(out), done(out)) == (["02"], ["00", "01", "03", "04"])


def assert_mended(golden: Undisturbed, sources: Path, out: Path) -> None:
    """Run the same command again, now that the cause is gone."""
    runner.assert_tidy_end(runner.run(sources, out, workers=1, **RECIPE), 0)
    assert tree(out) == golden.tree
    assert (quarantined(out), litter(out)) == ([], [])


# --- sources that kill


@contextmanager
def killing_whoever_opens(file: Path, process: "subprocess.Popen[str]") -> Iterator[list[int]]:
    """Kill every worker that has `file` open: a source that crashes its reader, and nothing patched."""
    killed: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            for worker in runner.workers(process):
                if worker.pid not in killed and has_open(worker, file):
                    with suppress(psutil.NoSuchProcess):
                        worker.kill()
                        killed.append(worker.pid)
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def has_open(process: psutil.Process, file: Path) -> bool:
    with suppress(OSError):
        return any(link.readlink() == file for link in Path(f"/proc/{process.pid}/fd").iterdir())
    return False


@linux_only
def test_a_source_that_kills_its_workers_is_quarantined_alone(tmp_path: Path) -> None:
    sources = corpus.equal_sources(tmp_path / "sources", files=FILES, rows=40)
    # A source is open until its last batch is read. This one has seven of them, so it is open for most of a
    # second and is seen by whoever looks a hundred times a second.
    poison = corpus.write(sources / BAD, corpus.documents(0, 800) * 16)
    out = tmp_path / "out"
    with (
        runner.running(sources, out, workers=2, **RECIPE) as process,
        killing_whoever_opens(poison, process) as killed,
    ):
        ended = runner.finish(process)
    assert len(killed) > 1, "a lost worker is worth another try"
    assert_all_but_one_finished(ended, out)
    assert "SIGKILL" in next(out.glob(f"{PRIVATE}/quarantine/*")).read_text()

    assert runner.convert(sources, tmp_path / "undisturbed", **RECIPE).complete
    assert_mended(Undisturbed(sources, tree(tmp_path / "undisturbed")), sources, out)


# --- sources that are bad


def no_parquet(path: Path) -> None:
    path.write_bytes(b"<html>404</html>".ljust(path.stat().st_size))


def without_its_end(path: Path) -> None:
    """What a download leaves that set the length first and then was cut."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def invalid_utf8(path: Path) -> None:
    texts = pa.array([b"fine", b"\xff\xfe", b"fine"], pa.binary())
    buffers = texts.buffers()
    pq.write_table(pa.table({"text": pa.StringArray.from_buffers(3, buffers[1], buffers[2])}), path)


def other_column(path: Path) -> None:
    pq.write_table(pa.table({"content": ["document"], "text_length": [8]}), path)


def numbers_for_text(path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2, 3]}), path)


def damaged_page(path: Path) -> None:
    """One letter is another; only the page's checksum can tell."""
    how = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    corpus.write(path, ["document 0"], write_page_checksum=True, **how)
    path.write_bytes(path.read_bytes().replace(b"document 0", b"document 1", 1))


DAMAGES = (
    no_parquet,
    without_its_end,
    truncated,
    empty,
    invalid_utf8,
    other_column,
    numbers_for_text,
    damaged_page,
)


def test_bad_sources_of_every_kind_fail_by_themselves_and_the_others_finish(
    sources: Path, tmp_path: Path
) -> None:
    for damage in DAMAGES:
        bad = sources / f"bad_{damage.__name__}.parquet"
        shutil.copy(sources / "00.parquet", bad)
        damage(bad)
    ended = runner.run(sources, tmp_path / "out", workers=2, **RECIPE)
    runner.assert_tidy_end(ended, 1)
    assert quarantined(tmp_path / "out") == sorted(f"bad_{damage.__name__}" for damage in DAMAGES)
    assert done(tmp_path / "out") == [f"{number:02d}" for number in range(FILES)]
    for name in quarantined(tmp_path / "out"):
        assert f"{name}.parquet" in ended.stderr
    assert not list((tmp_path / "out").glob(f"*_{FILES:05d}_*")), "nothing is joined while a tail is missing"


def test_a_truncated_source_that_was_replaced_by_a_good_copy_completes_the_run(
    golden: Undisturbed, sources: Path, tmp_path: Path
) -> None:
    truncated(sources / BAD)
    assert_all_but_one_finished(runner.run(sources, tmp_path / "out", workers=1, **RECIPE), tmp_path / "out")
    shutil.copy(golden.sources / BAD, sources / BAD)
    assert_mended(golden, sources, tmp_path / "out")


def test_a_quarantine_record_that_outlived_its_job_is_removed(
    golden: Undisturbed, sources: Path, tmp_path: Path
) -> None:
    """A kill may fall between the publishing of the receipt and the removal of the record."""
    out = tmp_path / "out"
    no_parquet(sources / BAD)
    assert not runner.convert(sources, out, **RECIPE).complete
    (record,) = out.glob(f"{PRIVATE}/quarantine/*")
    content = record.read_bytes()
    shutil.copy(golden.sources / BAD, sources / BAD)
    assert_mended(golden, sources, out)
    record.write_bytes(content)
    runner.cut_off(out)
    assert_mended(golden, sources, out)


def test_a_source_that_vanished_is_a_failure_of_its_own(
    golden: Undisturbed, sources: Path, tmp_path: Path
) -> None:
    """It is in the list when the command begins, so that its absence is not another recipe."""
    out = tmp_path / "out"
    with runner.running(sources, out, workers=1, **RECIPE) as process:
        runner.wait_until(lambda: runner.workers(process), process)
        (worker,) = runner.workers(process)
        worker.suspend()
        (sources / BAD).unlink()
        worker.resume()
        assert_all_but_one_finished(runner.finish(process), out)
    shutil.copy(golden.sources / BAD, sources / BAD)
    assert_mended(golden, sources, out)


# --- sources that change


def change(path: Path) -> None:
    """Replace a source by another of the same size."""
    size = path.stat().st_size
    write_plainly(path, [text.replace("document", "tnemucod") for text in corpus.documents(2000, 40)])
    assert path.stat().st_size == size


def write_plainly(path: Path, texts: list[str]) -> None:
    corpus.write(path, texts, compression="none", use_dictionary=False)


@pytest.fixture
def uncompressed(tmp_path: Path) -> Path:
    for number in range(3):
        write_plainly(tmp_path / "sources" / f"{number:02d}.parquet", corpus.documents(number * 1000, 40))
    return tmp_path / "sources"


def test_a_source_changed_after_a_finished_run_is_refused(uncompressed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert runner.convert(uncompressed, out, **RECIPE).complete
    change(uncompressed / BAD)
    before = state(out)
    runner.assert_tidy_end(runner.run(uncompressed, out, **RECIPE), 2)
    assert state(out) == before


def test_a_source_changed_between_two_sessions_is_refused_and_nothing_is_withdrawn(
    uncompressed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    content = (uncompressed / "01.parquet").read_bytes()
    no_parquet(uncompressed / "01.parquet")
    assert not runner.convert(uncompressed, out, **RECIPE).complete
    (uncompressed / "01.parquet").write_bytes(content)
    change(uncompressed / BAD)
    next(out.glob("*_00000_001.bin")).unlink()
    before = state(out / PRIVATE / "receipts")
    with pytest.raises(UsageError, match=r"02\.parquet"):
        runner.convert(uncompressed, out, **RECIPE)
    assert state(out / PRIVATE / "receipts") == before


def test_a_changed_source_cannot_stand_in_for_the_one_whose_shards_are_lost(
    uncompressed: Path, tmp_path: Path
) -> None:
    """What is made again must come of the same bytes: the joined shards hold tokens of the old ones."""
    out = tmp_path / "out"
    assert runner.convert(uncompressed, out, **RECIPE).complete
    before = shards(out)
    change(uncompressed / BAD)
    lost = next(out.glob("*_00002_000.bin"))
    lost.unlink()
    assert runner.run(uncompressed, out, **RECIPE).returncode in (1, 2)
    del before[lost.name]
    assert {name: digest for name, digest in shards(out).items() if name in before} == before
    assert not lost.exists()


# --- disks that are full or closed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a disk of given options, or change those of the mounted one; return where it is."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        how = f"remount,{options}" if mounted else options
        command = ["mount", "-t", "tmpfs", "-o", how, "fwconvert-test", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a small disk cannot be mounted here: {error}")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def assert_every_named_file_is_whole(out: Path) -> None:
    """Fail if a file under its final name is not, to the byte, what a whole one is."""
    for path in out.glob("*.bin"):
        header = path.read_bytes()[:1024]
        tokens = int.from_bytes(header[8:12], "little")
        assert path.stat().st_size == 1024 + 2 * tokens, path
        assert (out / "index" / f"{path.stem}.docs").stat().st_size % 8 == 0, path


@linux_only
@pytest.mark.parametrize("size", ["16k", "100k", "230k"], ids=["at the start", "half-way", "near the end"])
def test_a_full_disk_stops_the_run_and_a_larger_one_completes_it(
    size: str, golden: Undisturbed, small_disk: Callable[[str], Path]
) -> None:
    out = small_disk(f"size={size}") / "out"
    ended = runner.run(golden.sources, out, "--no-disk-check", workers=2, **RECIPE)
    runner.assert_tidy_end(ended, 1)
    assert "no space" in ended.stderr.lower()
    assert "ENOSPC" in ended.stderr
    assert_every_named_file_is_whole(out)
    assert quarantined(out) == [], "no job is to blame for a full disk"
    small_disk("size=50m")
    assert_mended(golden, golden.sources, out)


@linux_only
def test_a_full_disk_for_logs_is_not_blamed_on_a_job(
    small_disk: Callable[[str], Path], tmp_path: Path
) -> None:
    source = corpus.write(tmp_path / "0.parquet", ["document 0"])
    private = tmp_path / "out" / PRIVATE
    private.mkdir(parents=True)
    (private / "logs").symlink_to(small_disk("nr_inodes=1"))
    ended = runner.run(source, tmp_path / "out", workers=1, **RECIPE)
    assert "Traceback" not in ended.stderr
    assert quarantined(tmp_path / "out") == []


@linux_only
def test_a_full_folder_for_temporary_files_does_not_matter(
    golden: Undisturbed,
    small_disk: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("gigatoken", reason="gigatoken, which wants a file to read from, is not installed")
    recipe, flags = {**RECIPE, "tokenizer": "gpt2"}, ("--encoder", "fast")
    runner.assert_tidy_end(runner.run(golden.sources, tmp_path / "wanted", *flags, **recipe), 0)

    monkeypatch.setenv("TMPDIR", str(small_disk("size=64k")))
    runner.assert_tidy_end(runner.run(golden.sources, tmp_path / "out", *flags, **recipe), 0)
    assert tree(tmp_path / "out") == tree(tmp_path / "wanted")


@linux_only
def test_a_disk_that_is_too_small_is_refused_with_the_numbers(
    golden: Undisturbed, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=64k")
    ended = runner.run(golden.sources, disk / "out", **RECIPE)
    runner.assert_tidy_end(ended, 2)
    assert "not enough disk" in ended.stderr
    assert "65,536 bytes" in ended.stderr, "how much is free"
    assert list(disk.iterdir()) == []


@linux_only
def test_an_output_folder_that_is_closed_to_writing_ends_the_run(
    golden: Undisturbed, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=50m,ro")
    ended = runner.run(golden.sources, disk / "out", **RECIPE)
    runner.assert_tidy_end(ended, 1)
    assert "EROFS" in ended.stderr


@linux_only
def test_a_folder_closed_to_writing_after_a_finished_run_is_a_finished_run(
    golden: Undisturbed, small_disk: Callable[[str], Path]
) -> None:
    disk = small_disk("size=50m")
    assert runner.convert(golden.sources, disk / "out", **RECIPE).complete
    small_disk("ro")
    runner.assert_tidy_end(runner.run(golden.sources, disk / "out", **RECIPE), 0)


def dictionary_bomb(path: Path) -> None:
    """Write some hundred bytes that unpack to 2 GB: one text of 1 MB, named in each of 2,000 rows."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"text": text}), path, compression="zstd")


def large_cell(path: Path) -> None:
    """Write a small file with a text of 400 MB."""
    pq.write_table(pa.table({"text": ["x" * 400_000_000]}), path, compression="zstd", use_dictionary=False)


@linux_only
@pytest.mark.parametrize("bomb", [large_cell, dictionary_bomb])
def test_a_source_that_unpacks_beyond_all_measure_is_left_out_with_that_reason(
    bomb: Callable[[Path], None], sources: Path, tmp_path: Path
) -> None:
    bomb(sources / BAD)
    assert (sources / BAD).stat().st_size < 1_000_000

    ended = runner.run(sources, tmp_path / "out", "--worker-memory", "500M", workers=1, **RECIPE)

    assert_all_but_one_finished(ended, tmp_path / "out")
    assert "too much memory" in ended.stderr
    assert "--worker-memory" in ended.stderr


@linux_only
def test_a_worker_that_does_nothing_is_ended_and_its_job_done_by_another(
    golden: Undisturbed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # It counts from when an order is given: a new worker must be able to start in that time.
    flags = ("--stall-timeout", "10")
    with runner.running(golden.sources, out, *flags, workers=1, **RECIPE) as process:
        runner.wait_until(lambda: runner.workers(process), process)
        for worker in runner.workers(process):
            worker.suspend()
        ended = runner.finish(process)

    runner.assert_tidy_end(ended, 0)
    assert tree(out) == golden.tree
    assert "no progress" in ended.stderr


def unfinished(out: Path, kind: str) -> set[Path]:
    """Return the files under construction of sources or of joined shards."""
    return set((out / PRIVATE / "temporary").glob(f"*.{kind}*"))


@linux_only
@pytest.mark.parametrize("kind", ["large.parquet", "edu_fineweb_train"], ids=["of a source", "of a join"])
def test_what_an_ended_worker_had_begun_is_removed_at_once(kind: str, tmp_path: Path) -> None:
    """A second try needs the room; until the end of the session may be days."""
    out = tmp_path / "out"
    source = corpus.write(tmp_path / "large.parquet", corpus.documents(0, 2000) * 40)
    flags = ("--stall-timeout", "10", "--layout", "contiguous")
    with runner.running(source, out, *flags, workers=1, tokenizer="bytes") as process:
        runner.wait_until(lambda: unfinished(out, kind), process)
        (worker,) = runner.workers(process)
        worker.suspend()
        runner.wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, process)
        begun = unfinished(out, kind)
        assert begun, "it was quicker than the test"

        runner.wait_until(lambda: unfinished(out, kind) - begun, process)
        for another in runner.workers(process):
            another.suspend()
        again = unfinished(out, kind)
        assert again - begun, "the second try was quicker than the test"
        assert not again & begun
        for another in runner.workers(process):
            another.resume()
        ended = runner.finish(process)
    runner.assert_tidy_end(ended, 0)
    assert "no progress" in ended.stderr


def slow_down(worker: psutil.Process, *, part: float, until: Callable[[], object]) -> None:
    """Give a process only a part of the time of a processor, as on a machine that has little of it."""

    def used() -> float:
        times = worker.cpu_times()
        return float(times.user + times.system)

    with suppress(psutil.NoSuchProcess):
        while not until():
            worker.suspend()
            before, now = used(), time.monotonic()
            time.sleep(0.2)
            worker.resume()
            while used() - before < (time.monotonic() - now) * part and not until():
                time.sleep(0.002)
        worker.resume()


@linux_only
def test_a_worker_that_takes_long_to_compress_is_not_taken_for_one_that_does_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [f"{number * 7919 % 100_003} {number} " for number in range(5_000_000)]
    texts = ["".join(words[at : at + 50_000]) for at in range(0, len(words), 50_000)]
    source = corpus.write(tmp_path / "large.parquet", texts, compression="zstd")
    choices = {"tokenizer": "bytes", "format": "raw", "compress": "zstd", "val_tokens": 0, "threads": 1}
    with runner.running(source, out, "--stall-timeout", "5", workers=1, **choices) as process:
        # Its tokens, its index, and then its tokens compressed.
        runner.wait_until(lambda: len(unfinished(out, "train.bin")) > 2, process)
        (worker,) = runner.workers(process)
        slow_down(worker, part=0.05, until=lambda: len(unfinished(out, "train.bin")) <= 2)
        ended = runner.finish(process)
    runner.assert_tidy_end(ended, 0)
    assert "no progress" not in ended.stderr
    assert verify(out).ok


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_thousands_of_tiny_shards_keep_few_files_open(tmp_path: Path) -> None:
    corpus.write(tmp_path / "sources/0.parquet", ["x" * 20_000])
    words = runner.command(
        tmp_path / "sources", tmp_path / "out", tokenizer="bytes", shard_tokens=10, val_tokens=0, workers=1
    )
    limited = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *words]
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=runner.PATIENCE, check=False)
    runner.assert_tidy_end(ended, 0)
    assert len([*(tmp_path / "out").glob("*.bin")]) == 2000
