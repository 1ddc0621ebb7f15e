"""The package is built in rows: a module imports only from rows below its own.

The imports are read from the sources, those inside functions and those for
types included, so that nothing hides.
"""

import ast
from importlib import util
from pathlib import Path

import child
import pytest

import fwconvert

PACKAGE = Path(fwconvert.__file__).parent
MODULES = {path.stem: path for path in PACKAGE.glob("*.py")}

# From the top, where words come in and an exit code goes out, down to what needs nothing of ours.
# The commands print; a session is run; workers do its orders; records say what is on the disk.
# fmt: off
ROWS = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("__init__", "loader_torch", "progress", "wording"),
    ("view",),
    ("export_run", "loader", "pace", "trace"),
    ("loader_documents", "run", "show", "source_row", "status"),
    ("loader_windows", "supply"),
    ("driver", "loader_shards", "loader_waiting", "run_reader", "trial", "verify", "work"),
    ("fit", "needs", "watching"),
    ("footers",),
    ("engine", "verify_manifest"),
    ("account", "saved_plan", "worker"),
    ("documents", "exported", "leftovers", "rations", "run_manifest", "verify_shard"),
    (
        "fast", "loader_files", "loader_state", "origin", "pin", "places", "scan", "session",
        "strays", "stream_reader", "survey", "tails",
    ),
    (
        "credible", "encoders", "fetch", "folder", "join", "limits", "orders", "ranges", "request", "shard",
        "source", "tokenizer",
    ),
    (
        "catalog", "checks", "demo", "hub", "names", "pack", "plan", "sidecars", "sieve", "stream",
        "vocabulary", "zipped",
    ),
    ("exchange",),
    ("config", "patience", "receipt"),
    ("atomic", "formats", "hub_client", "process", "records", "streams", "typed", "where"),
    ("addresses", "ahead", "blocks", "columns", "doubtful", "errors", "expression", "files", "permutation"),
)
# fmt: on
ROW = {module: len(ROWS) - at for at, row in enumerate(ROWS) for module in row}

# Whoever only asks how far a run is does not wait for these to load.
HEAVY = ("numpy", "pyarrow", "tiktoken", "rich", "huggingface_hub", "zstandard")


def imports_of(module: str) -> set[str]:
    """Return the modules of the package that a module names in an import anywhere in its source."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import, which this test does not read"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    ours = [name.split(".") for name in found if name.split(".")[0] == "fwconvert"]
    return {parts[1] if parts[1:] and parts[1] in MODULES else "__init__" for parts in ours} - {module}


def everything_below(module: str) -> set[str]:
    """Return all modules that importing `module`, and calling all of its functions, may load."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = imports_of(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def outside_imports(module: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def test_every_module_has_its_row_and_every_row_its_modules() -> None:
    assert len(ROW) == sum(map(len, ROWS)), "a module stands in two rows"
    assert set(ROW) == set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_rows_below_its_own(module: str) -> None:
    wrong = {other for other in imports_of(module) if ROW[other] >= ROW[module]}

    assert not wrong, f"{module} is in row {ROW[module]} and imports {wrong}"


def test_a_worker_publishes_its_receipt_and_knows_nothing_of_the_run() -> None:
    # Two writers of manifest.json would lose each other's jobs.
    above = {"run_manifest", "work", "run", "driver", "engine", "progress", "cli"}

    assert not everything_below("worker") & above


@pytest.mark.parametrize("module", ["errors", "files", "atomic", "process"])
def test_the_lowest_rows_need_the_standard_library_alone(module: str) -> None:
    heavy = {*HEAVY, "msgspec", "platformdirs"}

    assert not outside_imports(module) & heavy


DECIDING = ["pack", "plan", "join", "names", "formats", "sidecars", "stream", "limits", "expression", "where"]


@pytest.mark.parametrize("module", [*DECIDING, "permutation"])
def test_deciding_code_does_no_input_and_no_output(module: str) -> None:
    doing = {"os", "io", "pathlib", "shutil", "socket", "subprocess", "tempfile", "time", "random"}

    assert not outside_imports(module) & doing
    assert "atomic" not in imports_of(module)


def test_nothing_but_atomic_writes_blocks() -> None:
    assert {module for module in MODULES if "blocks" in imports_of(module)} == {"atomic"}


def test_only_one_module_renames_files_into_place() -> None:
    # blocks is the hand of atomic. What files opens is the lock, the workers' logs, parts of sources and
    # a rank table for gigatoken: no output.
    writing = {"O_CREAT", "write_bytes", "write_text", "rename", "fsync"}
    writers = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in writing
    }

    assert writers == {"atomic", "blocks", "files"}


def test_light_modules_load_nothing_heavy() -> None:
    light = [
        "errors", "records", "atomic", "formats", "config", "names", "receipt", "folder", "orders", "session",
        "saved_plan", "survey", "run_manifest", "catalog", "request", "plan", "join", "process", "engine",
        "driver", "work", "status", "commands", "cli", "expression", "where", "limits", "rations", "strays",
        "watching",
    ]  # fmt: skip
    code = """
        import importlib, sys
        light, heavy = sys.argv[1].split(), sys.argv[2].split()
        import fwconvert
        told = set()
        for module in ["fwconvert", *(f"fwconvert.{name}" for name in light)]:
            importlib.import_module(module)
            new = {name for name in heavy if name in sys.modules} - told
            told |= new
            if new:
                print(module, "loads", *sorted(new))
    """

    assert child.run(code, " ".join(light), " ".join(HEAVY)) == ""


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["status", "."], ["plan", "--help"]])
def test_help_and_status_load_nothing_heavy(words: list[str]) -> None:
    code = """
        import contextlib, io, json, sys
        from fwconvert import cli
        words, heavy = json.loads(sys.argv[1]), sys.argv[2:]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.suppress(SystemExit):
                cli.main(words)
        print(*(name for name in heavy if name in sys.modules))
    """
    argument = "[" + ", ".join(f'"{word}"' for word in words) + "]"

    assert child.run(code, argument, *HEAVY).split() == []


def test_the_loader_loads_nothing_that_only_conversion_needs() -> None:
    code = """
        import sys
        import fwconvert.loader
        print(*(name for name in sys.argv[1:] if name in sys.modules))
    """
    heavy = ("pyarrow", "tiktoken", "gigatoken", "rich", "huggingface_hub", "zstandard", "torch")

    assert child.run(code, *heavy).split() == []


def test_importing_any_module_does_nothing(tmp_path: Path) -> None:
    code = """
        import importlib, os, sys, threading
        os.chdir(sys.argv[1])
        for name in sys.argv[2:]:
            importlib.import_module(f"fwconvert.{name}")
        assert threading.active_count() == 1
    """
    # PyTorch is an extra, which need not be installed.
    extra = set() if util.find_spec("torch") else {"loader_torch"}
    modules = sorted(set(MODULES) - {"__init__"} - extra)

    assert child.run(code, tmp_path, *modules) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_the_package_is_found_when_it_is_asked_for() -> None:
    for name in fwconvert.__all__:
        assert getattr(fwconvert, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        fwconvert.nonsense  # noqa: B018
