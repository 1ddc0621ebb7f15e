"""The package is a house of rooms: which room may import from which, read from the sources.

Imports inside functions and those for types count, so that nothing hides. A new
module needs no edit here.
"""

import ast
import pkgutil
from importlib import util
from pathlib import Path

import child
import pytest

import fwconvert

PACKAGE = Path(fwconvert.__file__).parent
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__").replace("/", "."): path
    for path in PACKAGE.rglob("*.py")
}

BELOW_RUN = {"hall", "store", "shards", "hub", "sources", "tokens"}
MAY_IMPORT = {
    "hall": {"hall"},
    "store": {"hall", "store"},
    "shards": {"hall", "store", "shards"},
    "hub": {"hall", "store", "hub"},
    "sources": {"hall", "store", "hub", "sources"},
    "tokens": {"hall", "store", "hub", "tokens"},
    "job": BELOW_RUN | {"job"},
    "inspection": BELOW_RUN | {"inspection"},
    "loader": {"hall", "store", "shards", "loader"},
    "run": BELOW_RUN | {"job", "inspection", "run"},
    "page": {"hall", "store", "shards", "tokens", "inspection", "page"},
    "cli": BELOW_RUN | {"run", "inspection", "page", "cli"},
}

# Whoever only asks how far a run is does not wait for these to load.
HEAVY = (
    "numpy",
    "pyarrow",
    "tiktoken",
    "rich",
    "huggingface_hub",
    "zstandard",
    "obstore",
    "boto3",
    "jinja2",
    "starlette",
)


def room_of(module: str) -> str:
    room = module.split(".", maxsplit=1)[0]
    return room if room in MAY_IMPORT else "hall"


def imports_of(path: Path) -> set[str]:
    """Return the modules of the package that a module names in an import anywhere in its source."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test does not read"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    ours = {name.removeprefix("fwconvert.") for name in found if name.startswith("fwconvert.")}
    return {name if name in MODULES else name.rpartition(".")[0] for name in ours}


# The package itself, and `python -m`, are the front door: they show what all rooms have.
@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"__init__", "__main__"}))
def test_a_room_imports_only_from_rooms_below_it(module: str) -> None:
    wrong = {
        other for other in imports_of(MODULES[module]) if room_of(other) not in MAY_IMPORT[room_of(module)]
    }

    assert not wrong, f"{module} is in {room_of(module)} and imports {sorted(wrong)}"


# So that no worker can write the manifest, a loader needs no converter, and a run can lie anywhere.
def test_the_rules_that_the_table_must_keep() -> None:
    assert not MAY_IMPORT["job"] & {"run", "inspection", "cli"}
    assert MAY_IMPORT["loader"] == {"hall", "store", "shards", "loader"}
    assert not MAY_IMPORT["store"] & {"sources", "tokens", "hub", "shards"}


def outside_imports(module: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("module", ["errors", "files", "machine", "processes", "store.atomic"])
def test_what_everything_stands_on_needs_the_standard_library_alone(module: str) -> None:
    assert not outside_imports(module) & {*HEAVY, "msgspec", "platformdirs"}


DECIDING = [
    "formats", "limits", "loader.permutation", "run.outlook", "shards.cutting", "shards.sidecars",
    "store.layout", "where",
]  # fmt: skip


@pytest.mark.parametrize("module", DECIDING)
def test_deciding_code_does_no_input_and_no_output(module: str) -> None:
    doing = {"os", "io", "pathlib", "shutil", "socket", "subprocess", "tempfile", "time", "random"}

    assert not outside_imports(module) & doing
    assert "store.atomic" not in imports_of(MODULES[module])


def test_whatever_asks_how_far_a_run_is_loads_nothing_heavy() -> None:
    light = [
        *(name for name in MODULES if "." not in name and name not in {*MAY_IMPORT, "__init__", "__main__"}),
        *(name for name in MODULES if name.startswith("store.")),
        "job.orders", "run.engines", "run.engines.executor", "run.engines.local",
        "run.events", "run.limiter", "run.request",
        "inspection.status", "sources.catalog", "cli.commands",
        "cli.parser",
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


# Modules that import what is an extra, and what that is.
EXTRAS = {
    "fwconvert.loader.torch": "torch",
    "fwconvert.tokens.hugging_face": "tokenizers",
    "fwconvert.tokens.sentence_pieces": "sentencepiece",
}


def test_importing_any_module_does_nothing(tmp_path: Path) -> None:
    code = """
        import importlib, os, sys, threading
        os.chdir(sys.argv[1])
        for name in sys.argv[2:]:
            importlib.import_module(name)
        assert threading.active_count() == 1
    """
    # Extras need not be installed.
    extra = {module for module, library in EXTRAS.items() if util.find_spec(library) is None}
    found = {module.name for module in pkgutil.walk_packages(fwconvert.__path__, "fwconvert.")}
    assert len(found) >= len(MODULES) - 1

    assert child.run(code, tmp_path, *sorted(found - extra)) == ""
    assert list(tmp_path.iterdir()) == []
