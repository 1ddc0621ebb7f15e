"""Whoever opens a file, or makes one or a folder, does it through `files` or `atomic`.

The calls are read from the sources. What is named here with a reason is all
that goes by another way; a call more, or one less, fails.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

import fwconvert

PACKAGE = Path(fwconvert.__file__).parent

# By the name of a method: who has a path may call it.
METHODS = frozenset(
    {
        "open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "touch",
        "mkdir", "makedirs", "symlink_to", "hardlink_to",
        "memmap", "fromfile", "tofile", "loadtxt", "savez", "savez_compressed", "savetxt", "open_memmap",
        "OSFile", "memory_map", "ParquetFile", "ParquetWriter", "write_table", "read_metadata", "read_schema",
        "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp",
        "copyfile", "copytree", "copy2",
    }
)  # fmt: skip
# These names are common, so whose they are has to be known.
FUNCTIONS = frozenset(
    {
        "np.load", "np.save", "os.truncate", "os.mkfifo", "os.mknod", "os.link", "os.symlink", "os.chmod",
        "shutil.copy", "shutil.move", "shutil.copyfileobj", "pq.read_table", "pq.read_pandas",
    }
)  # fmt: skip

# How often a module opens something by itself, and why that is right.
ALLOWED: dict[str, dict[str, int]] = {
    "files": {"os.open": 1},  # the door itself
    # Files of output, new and under names that nobody has (O_EXCL); folders, to be made and to be synced.
    "store/atomic": {"os.open": 2, "folder.mkdir": 1},
    # The null device, and what Linux tells of a process.
    "processes": {"os.open": 1, "open": 2},
    "machine": {"open": 1},
    "cli/console": {"open": 1},  # the null device in place of a reader who has gone
    # What is in the package.
    "tokens/vocabulary": {"file.open": 1},
    "tokens/gigatoken": {"place.read_bytes": 1},
    # Files that are open already, a footer in memory, and what `files` has opened and holds.
    "shards/shard": {"np.memmap": 1, "np.fromfile": 1},
    "sources/parquet": {"pq.ParquetFile": 2, "pa.OSFile": 1},
    # Written into memory.
    "sources/demo": {"pq.write_table": 1},
}


def opens(code: str) -> Counter[str]:
    """Return the calls in a source that may open or make something in the file system."""
    found: Counter[str] = Counter()
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            if node.func.id in METHODS:
                found[node.func.id] += 1
        elif isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            if node.func.attr in METHODS or called in FUNCTIONS:
                found[called] += 1
    return found


def test_only_files_and_atomic_open_files_and_make_folders() -> None:
    found = {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): opens(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }

    assert {module: dict(calls) for module, calls in found.items() if calls} == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        'open(path, "w")', 'path.open("a")', 'Path(name).open("rb")', "path.write_bytes(b'')",
        "path.write_text('')", "path.touch()", "path.read_bytes()", "path.read_text()", "os.open(path, 0)",
        'io.open(path, "wb")', "os.fdopen(3)", "np.memmap(path)", "np.fromfile(path)", "array.tofile(path)",
        "np.load(path)", "np.save(path, array)", "pq.ParquetFile(path)", "pa.OSFile(name)", "path.mkdir()",
        "pq.read_table(path)", "os.makedirs(path)", "tempfile.NamedTemporaryFile()", "shutil.copy(a, b)",
        "from tempfile import mkdtemp\nmkdtemp()",
    ],
)  # fmt: skip
@pytest.mark.parametrize("module", ["hub/download", "processes", "job/worker"])
def test_another_open_is_noticed(module: str, line: str) -> None:
    code = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")

    assert opens(f"{code}\n\ndef new() -> None:\n    " + line.replace("\n", "\n    ")) != opens(code)
