"""Records that are well formed, and lie."""

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child
import msgspec
import pytest
from examples import unhurried
from hypothesis import example, given, settings
from hypothesis import strategies as st
from runner import PRIVATE
from spoiled_runs import (
    Ended,
    Reader,
    Runs,
    assert_foreseen,
    command,
    copy_of,
    linux_only,
    private_folder,
    resumed,
)

from fwconvert import records
from fwconvert.errors import ManifestError
from fwconvert.store.receipts import JoinReceipt, Receipt

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
