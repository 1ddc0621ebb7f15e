"""Whoever opens a file does it through `files`, and only the store makes, names and removes files of a run.

The calls are read from the sources. What is named here with a reason is all
that goes by another way; a call more, or one less, fails.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import fwconvert

PACKAGE = Path(fwconvert.__file__).parent

# By the name of a method: who has a path may call it.
OPENING = frozenset(
    {
        "open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "touch",
        "memmap", "fromfile", "tofile", "loadtxt", "savez", "savez_compressed", "savetxt", "open_memmap",
        "OSFile", "memory_map", "ParquetFile", "ParquetWriter", "write_table", "read_metadata", "read_schema",
        "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp",
        "copyfile", "copytree", "copy2",
    }
)  # fmt: skip
NAMING = frozenset(
    {
        "mkdir", "makedirs", "symlink_to", "hardlink_to", "rename", "renames", "unlink", "rmdir",
        "removedirs", "rmtree", "utime", "link_to",
    }
)  # fmt: skip
# These names are common, so whose they are has to be known.
FUNCTIONS = frozenset(
    {
        "np.load", "np.save", "os.truncate", "os.mkfifo", "os.mknod", "os.link", "os.symlink", "os.chmod",
        "os.replace", "os.remove", "shutil.copy", "shutil.move", "shutil.copyfileobj", "pq.read_table",
        "pq.read_pandas",
    }
)  # fmt: skip
# Of these modules a function may not be had under another name, which would hide it.
PLAIN = {"os", "shutil", "tempfile", "io"}

# How often a module does such a thing by itself, and why that is right.
ALLOWED: dict[str, dict[str, int]] = {
    "files": {"os.open": 1},  # the door itself
    # Drafts, new and under names that nobody has (O_EXCL), which get their names here and nowhere else;
    # folders, to be made, to be synced and to be removed.
    "store/atomic": {"os.open": 2, "folder.mkdir": 1, "folder.rmdir": 1, "path.replace": 1, "path.unlink": 1},
    "store/local": {"os.utime": 1},
    # A part is resumed by byte, so it is no draft: it has a name of its own until it is proven.
    "hub/part": {"self._path.replace": 1},
    "run/engines/local": {"slot.log.unlink": 1},  # logs of workers in which nothing is
    # The null device, and what Linux tells of a process.
    "processes": {"os.open": 1, "open": 2},
    "machine": {"open": 2},
    "cli/console": {"open": 1},  # the null device in place of a reader who has gone
    # What is in the package.
    "tokens/tiktoken_kind": {"file.open": 1},
    "tokens/gigatoken": {"place.read_bytes": 1},
    "page/render": {"resources.files('fwconvert.page').joinpath(*name.split('/')).read_text": 1},
    # Files that are open already, a footer in memory, and what `files` has opened and holds.
    "shards/shard": {"np.memmap": 1, "np.fromfile": 1},
    "sources/reading": {"pa.OSFile": 1},
    "sources/parquet": {"pq.ParquetFile": 2},
    "sources/labels": {"pq.ParquetFile": 1},
    "sources/arrow": {"pa.ipc.read_schema": 1},
    # A table goes through a draft, and is read from what `files` has opened.
    "shards/table": {"pq.ParquetWriter": 1, "table.write_table": 1, "pq.ParquetFile": 1},
    # Where a plan lays a vocabulary for a moment, since it must leave nothing in the folder of the run.
    "run/sampling": {"tempfile.TemporaryDirectory": 1},
    # Written into memory.
    "sources/demo": {"pq.write_table": 1},
}

# Who uses the store's own hand outside of a run: a manifest and a corpus where the user wants them, a table
# in tiktoken's cache, a table that gigatoken reads from a file, what defines the tokenizer of a run, parts,
# fetched sources, and a page.
ATOMIC = {
    "sources/pin", "sources/demo", "tokens/tiktoken_kind", "tokens/gigatoken", "tokens/defined",
    "hub/download", "hub/part", "run/prefetch", "page/writing",
}  # fmt: skip


def calls(code: str) -> Counter[str]:
    """Return the calls in a source that may open, make, name or remove something in the file system."""
    return Counter(found for node in ast.walk(ast.parse(code)) for found in _found(node))


def _found(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module in PLAIN:
        names = OPENING | NAMING | {"replace", "remove", "truncate", "copy", "move"}
        yield from (f"from {node.module} import {name.name}" for name in node.names if name.name in names)
    elif isinstance(node, ast.Import):
        yield from (f"import {name.name} as" for name in node.names if name.name in PLAIN and name.asname)
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if name in OPENING | NAMING or called in FUNCTIONS or (name == "replace" and _is_of_a_path(node)):
            yield called


def _is_of_a_path(call: ast.Call) -> bool:
    """Tell whether this is Path.replace: that of a text takes two, that of a record takes names."""
    return isinstance(call.func, ast.Attribute) and len(call.args) == 1 and not call.keywords


def test_only_files_opens_and_only_the_store_names_files() -> None:
    found = {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): calls(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }

    assert {module: dict(counted) for module, counted in found.items() if counted} == ALLOWED


def atomic_imports(code: str) -> bool:
    """Tell whether a source has the store's own hand."""
    imported = {
        f"{node.module}.{name.name}"
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    imported |= {
        name.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import) for name in node.names
    }
    return any(name.startswith("fwconvert.store.atomic") for name in imported)


def test_only_the_store_writes_by_its_own_hand() -> None:
    found = {
        path.relative_to(PACKAGE).with_suffix("").as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "store" and atomic_imports(path.read_text(encoding="utf-8"))
    }

    assert found == ATOMIC


@pytest.mark.parametrize(
    "line",
    [
        "from fwconvert.store import atomic", "from fwconvert.store.atomic import Output",
        "import fwconvert.store.atomic", "from fwconvert.store import layout, atomic as hand",
    ],
)  # fmt: skip
def test_another_use_of_the_hand_is_noticed(line: str) -> None:
    code = (PACKAGE / "inspection" / "status.py").read_text(encoding="utf-8")

    assert not atomic_imports(code)
    assert atomic_imports(f"{code}\n\ndef new() -> None:\n    {line}\n")


@pytest.mark.parametrize(
    "line",
    [
        'open(path, "w")', 'path.open("a")', 'Path(name).open("rb")', "path.write_bytes(b'')",
        "path.write_text('')", "path.touch()", "path.read_bytes()", "path.read_text()", "os.open(path, 0)",
        'io.open(path, "wb")', "os.fdopen(3)", "np.memmap(path)", "np.fromfile(path)", "array.tofile(path)",
        "np.load(path)", "np.save(path, array)", "pq.ParquetFile(path)", "pa.OSFile(name)", "path.mkdir()",
        "pq.read_table(path)", "os.makedirs(path)", "tempfile.NamedTemporaryFile()", "shutil.copy(a, b)",
        "from tempfile import mkdtemp\nmkdtemp()",
        "os.replace(a, b)", "os.rename(a, b)", "os.renames(a, b)", "path.replace(other)",
        "path.rename(other)", "Path(a).replace(Path(b))", "from os import replace\nreplace(a, b)",
        "from os import rename as give",
        "import os as system\nsystem.replace(a, b)", "shutil.move(a, b)", "shutil.rmtree(path)",
        "path.unlink()", "path.unlink(missing_ok=True)", "os.unlink(path)", "os.remove(path)", "path.rmdir()",
        "os.rmdir(path)", "os.mkdir(path)", "path.symlink_to(other)", "path.hardlink_to(other)",
        "os.link(a, b)", "os.symlink(a, b)", "os.utime(path)", "os.truncate(path, 0)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("module", ["hub/download", "processes", "job/worker", "inspection/status"])
def test_another_call_is_noticed(module: str, line: str) -> None:
    code = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")

    assert calls(f"{code}\n\ndef new() -> None:\n    " + line.replace("\n", "\n    ")) != calls(code)


@pytest.mark.parametrize(
    "line",
    [
        'text.replace("a", "b")', 'text.replace("a", "b", 1)', "msgspec.structs.replace(made, digest='')",
        "replace(rules, limit=None)", "moment.replace(hour=1)", "found.remove(name)", "store.remove(name)",
    ],
)  # fmt: skip
def test_what_is_no_file_is_left_alone(line: str) -> None:
    assert not calls(line)
