"""Readers against bytes: a file is read as it was written, or refused. No record is code."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from examples import unhurried
from hypothesis import given, settings
from hypothesis import strategies as st
from spoiled_runs import Reader

import fwconvert
from fwconvert import records
from fwconvert.errors import FwconvertError

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


CODE_LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
MODULES = sorted(Path(fwconvert.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_module_can_read_code_from_a_file(module: Path) -> None:
    """Orders between a driver and its workers are pickled by multiprocessing: one machine, one user.

    What nanochat saves is a pickle; our own unpickler reads it, which knows no name that could do something.
    """
    allowed = {"pickle"} if module.stem == "rank_files" else set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {name.name.partition(".")[0] for name in node.names} & CODE_LOADERS - allowed
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
            assert node.attr in {"Unpickler", "UnpicklingError"}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in CODE_LOADERS
        elif isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec", "compile"})
            assert not any(word.arg == "allow_pickle" for word in node.keywords)
