"""Hostile and broken records: whatever is in a run folder is read as it was written, or refused in words.

A run folder may come from anywhere: from a disk that failed, from a copy that
was cut, from somebody who means ill. No record in it may lead a command
outside, end it with an error that nobody foresaw, or keep it for ever.
"""

import ast
import contextlib
import copy
import io
import json
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import child
import corpus
import msgspec
import pytest
import runner
from examples import unhurried
from hypothesis import example, given, settings
from hypothesis import strategies as st
from runner import PRIVATE

import fwconvert
from fwconvert import catalog, cli, receipt, records, run_manifest, saved_plan, session, shard
from fwconvert.errors import FwconvertError, ManifestError
from fwconvert.folder import RunFolder
from fwconvert.orders import Order, Outcome
from fwconvert.receipt import JoinReceipt, Quarantined, Receipt
from fwconvert.worker import perform

CHOICES: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 2000}
BAD = "01.parquet"

posix = pytest.mark.skipif(os.name == "nt", reason="wants links, pipes or any bytes in names")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="wants a limit of memory that is kept")


class InlineEngine:
    """Carries out orders in this very process: who reads makes no difference to what is read."""

    slots = 1

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, order: Order) -> "Future[Outcome]":
        future: Future[Outcome] = Future()
        future.set_result(perform(order))
        return future

    def outcome(self, future: "Future[Outcome]") -> Outcome:
        return future.result()

    def progress(self) -> list[Any]:
        return []

    def police(self) -> None:
        pass

    stop = kill = police


@pytest.fixture(autouse=True, scope="module")
def no_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fwconvert.run.LocalEngine", InlineEngine)
        yield


class Run:
    """A run that can be gone on with, and what it must come to."""

    # No dataclass: Hypothesis would print all of it.
    def __init__(self, out: Path, sources: Path, tree: dict[str, str]) -> None:
        self.out = out
        self.sources = sources
        self.tree = tree

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.out)


@dataclass(frozen=True)
class Runs:
    """A run that is complete, and the same one before the last of its sources was whole."""

    finished: Run
    halted: Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    base = tmp_path_factory.mktemp("runs")
    sources = corpus.equal_sources(base / "sources", files=3, rows=30)
    assert runner.convert(sources, base / "finished", **CHOICES).complete
    tree = runner.tree(base / "finished")

    good = (sources / BAD).read_bytes()
    (sources / BAD).write_bytes(bytes(len(good)))
    assert not runner.convert(sources, base / "halted", **CHOICES).complete
    (sources / BAD).write_bytes(good)
    # The one whose source was replaced is no finished run for whoever compares times.
    assert runner.convert(sources, base / "finished", **CHOICES).untouched
    return Runs(Run(base / "finished", sources, tree), Run(base / "halted", sources, tree))


def copy_of(run: Run, place: Path) -> Run:
    shutil.copytree(run.out, place)
    return Run(place, run.sources, run.tree)


# --- commands, and how they may end


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and all that it printed."""

    code: int
    said: str


def command(*words: object) -> Ended:
    """Run a command as `main` does, with the streams of a terminal: text that cannot be encoded raises."""
    out, err = io.BytesIO(), io.BytesIO()
    # Nothing of these is on the disk; closing them would lose what they hold.
    stdout = io.TextIOWrapper(out, "utf-8", errors="strict", write_through=True)
    stderr = io.TextIOWrapper(err, "utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = cli.main([str(word) for word in words])
    return Ended(code, (out.getvalue() + err.getvalue()).decode())


def resumed(run: Run) -> Ended:
    flags = [word for name, value in CHOICES.items() for word in (f"--{name.replace('_', '-')}", value)]
    return command("--source", run.sources, "--out", run.out, "--workers", 1, *flags)


def assert_foreseen(ended: Ended) -> None:
    """Fail unless a command ended in a way that somebody thought of."""
    assert ended.code in {0, 1, 2}, ended
    assert "Traceback" not in ended.said
    assert "FWCONVERT_DEBUG" not in ended.said, f"an error that nobody foresaw\n{ended.said[:2000]}"
    assert ended.said.strip()


def assert_clean(ended: Ended) -> None:
    """Fail unless the end was foreseen, and told in words that cannot command a terminal."""
    assert_foreseen(ended)
    assert all(sign == "\n" or sign.isprintable() for sign in ended.said), ascii(ended.said)


def snapshot(folder: Path) -> dict[str, str]:
    """Return everything in a folder: of files and links what they are."""
    return {str(path.relative_to(folder)): _what(path) for path in sorted(folder.rglob("*"))}


def _what(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return path.read_bytes().hex() if path.is_file() else "a folder"


def assert_survived(run: Run, elsewhere: Path) -> Ended:
    """Fail unless all commands on the run end well and leave what is elsewhere alone; return the last end."""
    before = snapshot(elsewhere)
    for ended in (command("status", run.out), command("verify", run.out), last := resumed(run)):
        assert_clean(ended)
    assert snapshot(elsewhere) == before
    if last.code == 0:
        assert runner.tree(run.out) == run.tree
    return last


# --- the private files of a run, replaced


def garbage(path: Path, _: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(3000))


def nothing(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path, _: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def deep_json(path: Path, _: Path) -> None:
    path.write_bytes(b'{"format":' + b'{"a":[' * 300_000)


def huge_json(path: Path, _: Path) -> None:
    """A hole: it takes no disk, and must not be read into memory."""
    with path.open("r+b") as file:
        file.truncate(records.MOST_BYTES + 1)


def folder_of_files(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"precious")


def link_to_a_file(path: Path, elsewhere: Path) -> None:
    path.unlink()
    path.symlink_to(elsewhere / "precious")


def link_to_its_copy(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere / "copy")
    path.symlink_to(elsewhere / "copy")


def link_to_nothing(path: Path, elsewhere: Path) -> None:
    path.unlink()
    path.symlink_to(elsewhere / "nothing")


def link_to_itself(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to(path)


SPOILS = (
    garbage, nothing, zeros, deep_json, huge_json, folder_of_files,
    link_to_a_file, link_to_its_copy, link_to_nothing, link_to_itself,
)  # fmt: skip
# Where a record lies, and whether the run is finished that has it.
PLACES = {
    "a receipt": (f"{PRIVATE}/receipts/00*.json", True),
    "the receipt of a joined shard": (f"{PRIVATE}/joins/*.json", True),
    "a session": (f"{PRIVATE}/sessions/*.json", True),
    "the lock": (f"{PRIVATE}/lock", False),
    "the plan": (f"{PRIVATE}/plan.json", True),
    "the run manifest": ("manifest.json", True),
    "a quarantine record": (f"{PRIVATE}/quarantine/*.json", False),
    "a tail": (f"{PRIVATE}/tails/00*.tail", False),
    "the index of a tail": (f"{PRIVATE}/tails/00*.docs", False),
}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_bytes(b"precious")
    return folder


@posix
@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_private_file_that_is_something_else_never_ends_a_command_badly(
    runs: Runs, tmp_path: Path, elsewhere: Path, place: str, spoil: Callable[[Path, Path], None]
) -> None:
    pattern, finished = PLACES[place]
    run = copy_of(runs.finished if finished else runs.halted, tmp_path / "out")
    path = next(run.out.glob(pattern))
    spoil(path, elsewhere)

    ended = assert_survived(run, elsewhere)

    if spoil is folder_of_files:
        # Nobody removes a folder that is not ours: it is named, and the user decides.
        assert ended.code in {1, 2}
        assert (path / "file").read_bytes() == b"precious"
        assert str(path) in ended.said or place == "the plan"
    elif place == "the plan" and spoil is not link_to_its_copy:
        assert ended.code in {1, 2}, "a folder without its plan is no licence to start over"
    elif place == "the lock" and path.is_symlink():
        assert ended.code == 1, "whoever writes into it writes elsewhere"
        assert str(path) in ended.said
    else:
        assert ended.code == 0, ended.said


@posix
@pytest.mark.parametrize("spoil", [garbage, deep_json, link_to_a_file], ids=lambda spoil: spoil.__name__)
def test_all_private_files_but_the_plan_may_be_something_else_at_once(
    runs: Runs, tmp_path: Path, elsewhere: Path, spoil: Callable[[Path, Path], None]
) -> None:
    run = copy_of(runs.halted, tmp_path / "out")
    for path in [path for path in (run.out / PRIVATE).rglob("*") if path.is_file()]:
        if path.name not in {"plan.json", "lock"}:
            spoil(path, elsewhere)

    assert assert_survived(run, elsewhere).code == 0


@posix
@pytest.mark.parametrize(
    "name", ["receipts", "joins", "sessions", "quarantine", "tails", "temporary", "logs"]
)
def test_what_lies_in_a_folder_elsewhere_is_not_removed_though_a_link_leads_there(
    runs: Runs, tmp_path: Path, elsewhere: Path, name: str
) -> None:
    run = copy_of(runs.halted, tmp_path / "out")
    shutil.rmtree(run.out / PRIVATE / name)
    (run.out / PRIVATE / name).symlink_to(elsewhere)

    for ended in (command("status", run.out), command("verify", run.out), resumed(run)):
        assert_clean(ended)

    assert (elsewhere / "precious").exists(), "a file elsewhere was removed"
    assert (elsewhere / "precious").read_bytes() == b"precious"


@posix
@pytest.mark.parametrize(
    "name", ["receipts", "joins", "sessions", "quarantine", "tails", "temporary", "logs"]
)
def test_a_file_in_the_place_of_a_private_folder_is_named(runs: Runs, tmp_path: Path, name: str) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    shutil.rmtree(run.out / PRIVATE / name)
    (run.out / PRIVATE / name).write_bytes(b"a file")
    (run.out / "manifest.json").unlink()  # so that there is something to do

    ended = assert_survived(run, runs.finished.sources)

    assert ended.code == 1
    assert str(run.out / PRIVATE / name) in ended.said


@linux_only
@pytest.mark.parametrize("name", ["receipts", "joins", "sessions", "quarantine", "temporary", "tails"])
def test_a_file_whose_name_is_no_text_never_ends_a_command_badly(
    runs: Runs, tmp_path: Path, elsewhere: Path, name: str
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    (run.out / PRIVATE / name / os.fsdecode(b"\xff\x1b[2J.json")).write_bytes(b"garbage")

    assert_clean(command("status", "--json", run.out))
    assert_clean(command("verify", "--json", run.out))
    assert assert_survived(run, elsewhere).code == 0


# --- files that have no end


def in_time(read: Callable[[], object], pipe: Path) -> object:
    """Return what `read` returns or raises; fail if it waits for somebody to write into the pipe."""
    outcome: list[object] = []

    def target() -> None:
        try:
            outcome.append(read())
        except Exception as error:  # noqa: BLE001  # told by its type
            outcome.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(3)
    waited = thread.is_alive()
    with contextlib.suppress(OSError):  # ENXIO: nobody waits.
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    thread.join(10)
    assert not waited, "the reader waits for a writer that never comes"
    return outcome[0]


PIPE_READERS: dict[str, Callable[[Path], object]] = {
    "a record": lambda path: records.read(path, Quarantined),
    "a token shard": lambda path: shard.read_tokens(path, "uint16"),
    "a document index": shard.read_index,
}


@posix
@pytest.mark.parametrize("read", PIPE_READERS.values(), ids=PIPE_READERS.keys())
def test_a_pipe_is_refused_and_not_waited_for(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    assert isinstance(in_time(lambda: read(path), path), FwconvertError)


@linux_only
def test_a_device_without_an_end_is_refused_and_not_read_into_memory(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        from fwconvert import records
        from fwconvert.errors import ManifestError
        from fwconvert.receipt import Quarantined
        try:
            records.read(Path(sys.argv[1]), Quarantined)
        except ManifestError:
            print("refused")
    """
    (tmp_path / "record.json").symlink_to("/dev/zero")

    assert child.run(code, tmp_path / "record.json") == "refused\n"


# --- readers against bytes


class Reader:
    """A file as it was written, and who reads it."""

    # No dataclass: Hypothesis would print all of it.
    def __init__(self, path: Path, good: bytes, read: Callable[[], object]) -> None:
        self.path = path
        self.good = good
        self.read = read


@pytest.fixture(scope="module")
def readers(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    base = tmp_path_factory.mktemp("readers")
    done, halted = copy_of(runs.finished, base / "out"), copy_of(runs.halted, base / "halted")
    folder, recipe = done.folder, saved_plan.read_plan(done.folder)
    manifest = base / "m.json"
    manifest.write_bytes(records.encode(recipe.source))
    job, join = next(folder.receipts.glob("00*")), next(folder.joins.iterdir())
    quarantined = next(halted.folder.quarantine.iterdir())
    token_shard = min(done.out.glob("*.bin"))
    index = folder.shard_index(token_shard.name)

    def read_plan() -> object:
        saved_plan.refuse_other_recipe(folder, recipe)
        saved_plan.known_sources(folder, recipe)
        return saved_plan.read_plan(folder)

    found: dict[str, tuple[Path, Callable[[], object]]] = {
        "source manifest": (manifest, lambda: catalog.find(str(manifest))),
        "receipt": (job, lambda: receipt.read(job, Receipt, recipe.recipe_id)),
        "join receipt": (join, lambda: receipt.read(join, JoinReceipt, recipe.recipe_id)),
        "quarantine record": (quarantined, lambda: records.read(quarantined, Quarantined)),
        "plan": (folder.plan, read_plan),
        "session": (next(folder.sessions.iterdir()), lambda: session.all_of(folder)),
        "run manifest": (folder.manifest, lambda: run_manifest.read(folder)),
        "token shard": (token_shard, lambda: shard.read_tokens(token_shard, "uint16").tobytes()),
        "document index": (index, lambda: shard.read_index(index).tobytes()),
    }
    return {name: Reader(path, path.read_bytes(), read) for name, (path, read) in found.items()}


NAMES = (
    "source manifest", "receipt", "join receipt", "quarantine record", "plan", "session", "run manifest",
    "token shard", "document index",
)  # fmt: skip


def mutated(raw: bytes, data: st.DataObject) -> bytes:
    """Return the bytes with some overwritten, removed, repeated or put in."""
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        length = data.draw(st.sampled_from([0, 1, 2, 3, 50, 10**9]))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\0", b"-", b"9" * 30, b'"', b"}", b"[["]))
        changed[at : at + length] = put
    return bytes(changed)


def assert_as_written(found: object, raw: bytes) -> None:
    """Fail unless what was read is what stands in the file."""
    if isinstance(found, bytes):
        assert found == raw[len(raw) - len(found) :]
    elif isinstance(found, list):  # Sessions: one that is damaged has no times.
        assert len(found) == 1
        assert not found[0].started or agrees(json.loads(records.encode(found[0])), json.loads(raw))
    else:
        written = json.loads(raw)
        assert agrees(json.loads(records.encode(found)), written.get("recipe", written))


def agrees(found: Any, written: Any) -> bool:
    """Tell whether everything that is written was read; fields with a default may be left out."""
    if isinstance(written, dict):
        return all(key in found and agrees(found[key], value) for key, value in written.items())
    if isinstance(written, list):
        return len(found) == len(written) and all(map(agrees, found, written))
    return bool(found == written)


@pytest.mark.parametrize("name", NAMES)
def test_a_good_file_is_read_as_it_was_written(readers: dict[str, Reader], name: str) -> None:
    assert_as_written(readers[name].read(), readers[name].good)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(unhurried, max_examples=60, derandomize=True)
def test_mutated_bytes_are_refused_or_read_as_they_are(
    readers: dict[str, Reader], name: str, data: st.DataObject
) -> None:
    reader = readers[name]
    raw = mutated(reader.good, data)
    reader.path.write_bytes(raw)
    try:
        found = reader.read()
    except FwconvertError:
        return
    finally:
        reader.path.write_bytes(reader.good)
    assert_as_written(found, raw)


@given(at=st.integers(0, 255), word=st.integers(-(2**31), 2**31 - 1), data=st.data())
@settings(unhurried, max_examples=60, derandomize=True)
def test_a_header_that_lies_is_refused(
    readers: dict[str, Reader], at: int, word: int, data: st.DataObject
) -> None:
    """Any of its 256 numbers, and any size of the file; what is read is the tokens of the file."""
    reader = readers["token shard"]
    raw = bytearray(reader.good)
    raw[4 * at : 4 * at + 4] = word.to_bytes(4, "little", signed=True)
    raw = raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, 1025, 1024, 1023, 3, 0]))]
    reader.path.write_bytes(raw)
    try:
        assert reader.read() == bytes(raw[1024:])
        # The rest of a header is for `verify` to prove.
        assert bytes(raw[:12]) == reader.good[:12]
        assert len(raw) == len(reader.good)
    except FwconvertError:
        assert bytes(raw[:12]) != reader.good[:12] or len(raw) != len(reader.good)
    finally:
        reader.path.write_bytes(reader.good)


# --- records that are well formed, and lie

# JSON allows all of these; a digest can be computed by anybody.
HOSTILE: tuple[Any, ...] = (
    0, -1, 2**31, 2**63, -(2**63), 10**30, 10**400, int("9" * 4300), True, None, 1.5, "", "0", ".", "..",
    "../../elsewhere/precious", "/etc/passwd", "a\0b", "a\\..\\b", "\x1b[2J\x07", "a\nb", "\u202e",
    "x" * 5000, [], [[]], {}, [1, 2], "ab" * 32,
)  # fmt: skip


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to all values in a JSON document, but that of its format."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key != "format":
            yield (*way, key)
            yield from leaves(inner, (*way, key))


# Which values of a record become which of the hostile ones.
Lies = list[tuple[int, int]]
lies_of_any_kind = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, len(HOSTILE) - 1)), min_size=1, max_size=3
)


def with_lies(raw: bytes, lies: Lies) -> bytes:
    """Return a JSON record in which a few values are hostile."""
    document = json.loads(raw)
    for place, hostile in lies:
        ways = list(leaves(document))
        *way, last = ways[place % len(ways)]
        parent = document
        for key in way:
            parent = parent[key]
        parent[last] = copy.deepcopy(HOSTILE[hostile])
    return json.dumps(document).encode()


def sealed(raw: bytes, kind: type[Receipt] | type[JoinReceipt]) -> bytes:
    """Return a receipt with the digest that fits it; one that is none, as it is."""
    try:
        found = records.decode(raw, kind, "x")
    except ManifestError:
        return raw
    content = msgspec.structs.replace(found, digest="")
    return records.encode(msgspec.structs.replace(content, digest=records.digest(content)))


@given(lies=lies_of_any_kind)
@example(lies=[(147, 7)])
@settings(unhurried, max_examples=120, derandomize=True)
def test_a_run_manifest_that_lies_never_ends_a_command_badly(readers: dict[str, Reader], lies: Lies) -> None:
    reader = readers["run manifest"]
    out = reader.path.parent
    name = readers["token shard"].path.name
    reader.path.write_bytes(with_lies(reader.good, lies))
    try:
        for words in (["status", out], ["verify", out], ["verify", "--json", out], ["show", out, name]):
            assert_foreseen(command(*words))
    finally:
        reader.path.write_bytes(reader.good)


@given(lies=lies_of_any_kind)
@settings(unhurried, max_examples=60, derandomize=True)
def test_a_source_manifest_that_lies_never_ends_a_command_badly(
    readers: dict[str, Reader], runs: Runs, lies: Lies
) -> None:
    path = readers["source manifest"].path
    document = json.loads(readers["source manifest"].good)
    document["totals"] = {"files": 0, "bytes": 0}  # They have a test of their own.
    path.write_bytes(with_lies(json.dumps(document).encode(), lies))
    try:
        ended = command("plan", "--version", path, "--source", runs.finished.sources, "--out", path.parent)
        assert_foreseen(ended)
    finally:
        path.write_bytes(readers["source manifest"].good)


@linux_only
def test_a_source_manifest_with_more_files_than_there_can_be_is_refused(tmp_path: Path) -> None:
    source = {"name": "x", "dataset": "a/b", "revision": "main", "folder": "", "files": []}
    document = {"format": "fwconvert source manifest 1", **source}
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**document, "totals": {"files": 10**12, "bytes": 10**15}}))
    code = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        from fwconvert import cli
        sys.stderr = sys.stdout
        print(cli.main(["plan", "--version", sys.argv[1], "--out", sys.argv[2]]))
    """
    said = child.run(code, path, tmp_path / "out", OPENBLAS_NUM_THREADS="1")

    assert_foreseen(Ended(int(said.split()[-1]), said))


RECORD_KINDS: dict[str, Any] = {
    "receipt": Receipt,
    "join receipt": JoinReceipt,
    "session": None,
    "plan": None,
    "quarantine record": None,
}


@pytest.mark.parametrize("name", RECORD_KINDS)
@given(lies=lies_of_any_kind)
@example(lies=[(353703, 6)])  # a joined shard of more tokens than a float can count
@settings(unhurried, max_examples=14, derandomize=True)
def test_a_private_record_that_lies_never_ends_a_command_badly(
    readers: dict[str, Reader], runs: Runs, name: str, lies: Lies
) -> None:
    reader = readers[name]
    raw = with_lies(reader.good, lies)
    if RECORD_KINDS[name] is not None:
        raw = sealed(raw, RECORD_KINDS[name])
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        run = copy_of(runs.halted if name == "quarantine record" else runs.finished, base / "in" / "out")
        path = run.out / PRIVATE / reader.path.relative_to(private_folder(reader.path))
        path.write_bytes(raw)
        before = [*base.iterdir(), *(base / "in").iterdir()]

        for ended in (command("status", run.out), command("verify", run.out), resumed(run)):
            assert_foreseen(ended)

        assert [*base.iterdir(), *(base / "in").iterdir()] == before


def private_folder(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == PRIVATE)


# More than fits in 64 bits, in a float, and in a number that Python turns into text.
BEYOND = (-1, 2**63, 10**400, int("9" * 4300))


def numbers(document: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to one number of each name."""
    seen: set[str] = set()
    for way in leaves(document):
        value, name = document, ".".join("*" if isinstance(key, int) else key for key in way)
        for key in way:
            value = value[key]
        if type(value) is int and name not in seen:
            seen.add(name)
            yield way


def with_number(raw: bytes, way: tuple[Any, ...], number: int) -> bytes:
    document = parent = json.loads(raw)
    for key in way[:-1]:
        parent = parent[key]
    parent[way[-1]] = number
    return json.dumps(document).encode()


@pytest.mark.parametrize("number", BEYOND, ids=["negative", "64 bits", "400 digits", "4300 digits"])
@pytest.mark.parametrize("name", ["run manifest", "receipt", "join receipt", "plan", "source manifest"])
def test_a_number_beyond_all_measure_never_ends_a_command_badly(
    readers: dict[str, Reader], runs: Runs, name: str, number: int
) -> None:
    reader, out = readers[name], readers["run manifest"].path.parent
    source = ("--version", reader.path, "--source", runs.finished.sources, "--out", out.parent / "new")
    commands: dict[str, list[tuple[object, ...]]] = {
        "run manifest": [("verify", out), ("show", out, readers["token shard"].path.name)],
        "receipt": [("status", out), ("status", "--json", out), ("verify", out)],
        "join receipt": [("status", out), ("verify", out)],
        "plan": [("status", out), ("status", "--json", out)],
        "source manifest": [("plan", *source), ("plan", "--json", *source)],
    }
    bad = []
    for way in [way for way in numbers(json.loads(reader.good)) if way[0] != "totals"]:
        reader.path.write_bytes(with_number(reader.good, way, number))
        for words in commands[name]:
            ended = command(*words)
            if "FWCONVERT_DEBUG" in ended.said:
                bad.append((".".join(map(str, way)), words[0], ended.said.partition("\n")[0][:200]))
    reader.path.write_bytes(reader.good)
    assert bad == []


# --- paths that lead elsewhere

TRICKS = (
    "..", "../x.parquet", "a/../../x.parquet", "/x.parquet", "//x", "a\\..\\x.parquet", "C:\\x", "a\0b",
    "\x1b[2Jx.parquet", "a\nb", "a\u202eb", "x" * 300, "/".join(["x" * 200] * 6), "", ".", "a//b",
)  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS, ids=ascii)
def test_a_source_manifest_with_a_trick_in_a_path_is_refused_in_printable_words(
    readers: dict[str, Reader], runs: Runs, trick: str
) -> None:
    reader = readers["source manifest"]
    document = json.loads(reader.good)
    document["files"][1]["path"] = trick
    reader.path.write_text(json.dumps(document))
    try:
        with pytest.raises(ManifestError):
            catalog.find(str(reader.path))
        flags = ("--version", reader.path, "--source", runs.finished.sources, "--out", "unused")
        ended = command("plan", *flags)
        assert ended.code == 1
        assert_clean(ended)
    finally:
        reader.path.write_bytes(reader.good)


@pytest.mark.parametrize("field", ["name", "dataset", "revision", "folder"])
def test_no_word_of_a_source_manifest_commands_the_terminal(
    readers: dict[str, Reader], runs: Runs, field: str
) -> None:
    reader = readers["source manifest"]
    document = {**json.loads(reader.good), field: "\x1b[2J\x07"}
    if field == "name":
        document["files"][0]["path"] = "../x"  # so that the name is told
    reader.path.write_text(json.dumps(document))
    try:
        flags = ("--version", reader.path, "--source", runs.finished.sources, "--out", "unused")
        assert_clean(command("plan", *flags))
    finally:
        reader.path.write_bytes(reader.good)


def first_shard(run: Run) -> tuple[Path, Receipt]:
    """Return the path and the content of the receipt of the first job."""
    path = next(run.folder.receipts.glob("00*"))
    return path, receipt.read(path, Receipt, saved_plan.read_plan(run.folder).recipe_id)


@pytest.fixture
def shard_elsewhere(runs: Runs, elsewhere: Path) -> Path:
    """A good token shard with its index, outside of the run."""
    run = runs.finished
    name = first_shard(run)[1].shards[0].name
    shutil.copy(run.folder.shard(name), elsewhere / "x.bin")
    shutil.copy(run.folder.shard_index(name), elsewhere / "x.docs")
    return elsewhere / "x.bin"


def test_a_receipt_is_not_believed_that_names_files_elsewhere(
    runs: Runs, tmp_path: Path, elsewhere: Path, shard_elsewhere: Path
) -> None:
    """All of it fits, to the digest and the sizes; only the name leads out of the folder."""
    run = copy_of(runs.finished, tmp_path / "out")
    path, made = first_shard(run)
    line = msgspec.structs.replace(made.shards[0], name=str(shard_elsewhere))
    receipt.publish(msgspec.structs.replace(made, shards=(line, *made.shards[1:])), path)

    ended = assert_survived(run, elsewhere)

    assert ended.code == 0, ended.said
    assert str(elsewhere) not in (run.out / "manifest.json").read_text()


def test_the_receipt_of_a_joined_shard_is_not_believed_that_names_files_elsewhere(
    runs: Runs, tmp_path: Path, elsewhere: Path, shard_elsewhere: Path
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    line = msgspec.structs.replace(first_shard(run)[1].shards[0], name=str(shard_elsewhere))
    path = next(run.folder.joins.iterdir())
    made = receipt.read(path, JoinReceipt, saved_plan.read_plan(run.folder).recipe_id)
    receipt.publish(msgspec.structs.replace(made, shard=line, segments=()), path.with_name("x.json"))

    ended = assert_survived(run, elsewhere)

    assert ended.code == 0, ended.said
    assert str(elsewhere) not in (run.out / "manifest.json").read_text()


@pytest.mark.parametrize("absolute", [True, False])
def test_the_id_of_a_session_is_not_a_way_out_of_the_folder(
    runs: Runs, tmp_path: Path, elsewhere: Path, absolute: bool
) -> None:
    """A session that was cut off gets its end written into its record, and into no other file."""
    run = copy_of(runs.finished, tmp_path / "out")
    (elsewhere / "precious.json").write_bytes(b"precious")
    path = next(run.folder.sessions.iterdir())
    found = records.read(path, session.Session)
    way = str(elsewhere / "precious") if absolute else "../../../elsewhere/precious"
    path.write_bytes(records.encode(msgspec.structs.replace(found, id=way, ended="")))

    ended = assert_survived(run, elsewhere)

    assert ended.code == 0, ended.said
    # What the record said is settled: the next command has nothing left to do.
    assert "nothing was changed" in resumed(run).said


def test_show_reads_no_shard_outside_of_the_run(runs: Runs, tmp_path: Path, shard_elsewhere: Path) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    document = json.loads((run.out / "manifest.json").read_text())
    document["shards"][0]["name"] = str(shard_elsewhere)
    (run.out / "manifest.json").write_text(json.dumps(document))

    ended = command("show", run.out, shard_elsewhere.name)

    assert_clean(ended)
    assert ended.code in {1, 2}
    assert "document 1" not in ended.said


@pytest.mark.parametrize("segments", [[], [[99, 0]], [[-99, 0]], [[0, 5]], [[0, -1]], [[0, 10**6]]], ids=str)
def test_show_refuses_a_shard_that_is_of_no_source_where_it_begins(
    runs: Runs, tmp_path: Path, segments: list[list[int]]
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    document = json.loads((run.out / "manifest.json").read_text())
    document["shards"][0]["segments"] = segments
    (run.out / "manifest.json").write_text(json.dumps(document))

    assert_clean(command("show", run.out, document["shards"][0]["name"]))


@pytest.mark.parametrize("start", [2000, 2**32 - 1])
def test_show_refuses_a_document_that_starts_behind_the_end(runs: Runs, tmp_path: Path, start: int) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    name = first_shard(run)[1].shards[0].name
    run.folder.shard_index(name).write_bytes(start.to_bytes(4, "little") + bytes(4))

    assert_clean(command("show", run.out, name))


@pytest.mark.parametrize("field", ["path", "reason"])
def test_no_word_of_a_quarantine_record_commands_the_terminal(runs: Runs, tmp_path: Path, field: str) -> None:
    run = copy_of(runs.halted, tmp_path / "out")
    path = next(run.folder.quarantine.iterdir())
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "\x1b[2J\x07 bad"}))

    assert_clean(command("status", run.out))


@pytest.mark.parametrize("way", [("jobs", 0, "path"), ("shards", 0, "name"), ("recipe_id",), ("format",)])
def test_no_word_of_a_run_manifest_commands_the_terminal(
    runs: Runs, tmp_path: Path, way: tuple[Any, ...]
) -> None:
    run = copy_of(runs.finished, tmp_path / "out")
    document = parent = json.loads((run.out / "manifest.json").read_text())
    for key in way[:-1]:
        parent = parent[key]
    parent[way[-1]] = "\x1b[2J\x07 bad"
    (run.out / "manifest.json").write_text(json.dumps(document))

    assert_clean(command("verify", run.out))


# --- no record is code

CODE_LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
MODULES = sorted(Path(fwconvert.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_module_can_read_code_from_a_file(module: Path) -> None:
    """Orders between a driver and its workers are pickled by multiprocessing: one machine, one user."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {name.name.partition(".")[0] for name in node.names} & CODE_LOADERS
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in CODE_LOADERS
        elif isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec", "compile"})
            assert not any(word.arg == "allow_pickle" for word in node.keywords)
