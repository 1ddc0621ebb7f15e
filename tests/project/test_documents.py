"""The documents tell the truth: what they show is made again here and compared."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import corpus
import pytest

import fwconvert
from fwconvert import trainers
from fwconvert.cli import main
from fwconvert.formats import FormatName

REPOSITORY = Path(fwconvert.__file__).parent.parent
FORMAT = (REPOSITORY / "FORMAT.md").read_text()
README = (REPOSITORY / "README.md").read_text()
REFERENCE = (REPOSITORY / "REFERENCE.md").read_text()
ARCHITECTURE = (REPOSITORY / "ARCHITECTURE.md").read_text()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The runs that FORMAT.md describes, by their format."""
    folder = tmp_path_factory.mktemp("example")
    corpus.write(folder / "a.parquet", ["Hello world", "", "The cat sat."])
    corpus.write(folder / "b.parquet", ["One more document"])

    def run(name: str) -> Path:
        out = folder / name
        if not out.exists():
            sizes = (
                ["--val-tokens", "4"]
                if name == "raw"
                else ["--shard-tokens", "5", "--val-tokens", "0", "--last", "keep"]
            )
            sizes += ["--sequence-length", "2"] if name == "mds" else []
            words = ["--format", name, *sizes, "--workers", "1", "--quiet"]
            assert main(["--source", str(folder), "--out", str(out), *words]) == 0
        return out

    return run


@pytest.fixture(scope="module")
def example(examples: Callable[[str], Path]) -> Path:
    """The run that FORMAT.md describes in full."""
    return examples("llmc")


def hexdumps() -> list[tuple[str, str]]:
    return re.findall(r"```hexdump (\S+)\n(.*?)```", FORMAT, re.DOTALL)


def read_hexdump(text: str) -> bytes:
    """Return the bytes of a hexdump, in which * stands for repetitions of the row before it."""
    content = b""
    for row in text.strip().splitlines():
        if row == "*":
            continue
        place, *numbers = row.split()
        last = content[-16:]
        while len(content) < int(place, 16):
            content += last
        content += bytes.fromhex("".join(numbers))
    return content


def test_format_md_has_its_hexdumps() -> None:
    assert len(hexdumps()) == 17


@pytest.mark.parametrize(("name", "dump"), hexdumps())
def test_a_hexdump_in_format_md_is_what_is_written(
    name: str, dump: str, examples: Callable[[str], Path]
) -> None:
    first, _, rest = name.partition("/")
    kind, file = (first, rest) if first in get_args(FormatName) else ("llmc", name)
    assert (examples(kind) / file).read_bytes() == read_hexdump(dump)


def test_format_md_describes_every_key_of_the_run_manifest(example: Path) -> None:
    keys = re.findall(r'^"(\w+)":', (example / "manifest.json").read_text(), re.MULTILINE)
    described = FORMAT.split("## Run manifest")[1].split("## Source manifest")[0]
    assert [key for key in keys if f"`{key}`" not in described] == []


def test_every_flag_stands_in_the_reference_and_every_flag_there_exists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exists = set()
    for words in (
        [],
        ["plan"],
        ["pin"],
        ["status"],
        ["verify"],
        ["show"],
        ["trace"],
        ["export"],
        ["merge"],
        ["report"],
        ["browse"],
        ["compare"],
    ):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        found = set(re.findall(r"--[a-z-]+[a-z]", capsys.readouterr().out))
        if not words:
            of_convert = found
        exists |= found
    lines = " ".join(one.line for one in trainers.TRAINERS)
    others = {"--everything", "--array", *re.findall(r"--[a-z][a-z-]+[a-z]", lines)}  # of others
    named = set(re.findall(r"(?<=[`\s(])--[a-z][a-z-]+[a-z]", README + REFERENCE)) - others
    assert named <= exists
    described = set(re.findall(r"--[a-z][a-z-]+[a-z]", REFERENCE.split("## Trainers")[0]))
    of_others = {"--help", "--about", "--document"}  # the help of the program shows other commands, too
    assert of_convert - of_others <= described


def test_the_reference_has_the_table_of_trainers() -> None:
    wanted = trainers.reference_rows()
    table = REFERENCE.partition("## Trainers")[2].partition("\n## ")[0]
    assert [line for line in table.splitlines() if line.startswith("|")][2:] == wanted
    assert {one.format for one in trainers.TRAINERS} == {*get_args(FormatName)}


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    corpus.write(tmp_path / "parquet-folder/a.parquet", ["one", "two", "three", "four", "five", "six"])
    api = next(block for block in _blocks() if "fwconvert.recipe(" in block)
    reading = next(block for block in _blocks() if "np.memmap" in block)
    ended = _python(api.replace("10_000_000", "4"), tmp_path)
    assert ended.stdout.split()[0] == "True"
    name = min(path.name for path in (tmp_path / "OUT").glob("*_train_*.bin"))
    ended = _python(
        reading.replace("edu_fineweb_train_00000_001.bin", name) + "\nprint(first.tolist())", tmp_path
    )
    assert ended.stdout.startswith("[50256, ")
    loading = next(block for block in _blocks() if "Loader" in block)
    ended = _python(
        loading.replace("1024", "2").replace("batch=8", "batch=1") + "\nprint(windows.shape, state)", tmp_path
    )
    assert ended.stdout.startswith("(1, 3) {")


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _python(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    script = folder / "script.py"
    script.write_text(code)
    return subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=True)


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```demo\n(.*?)```", README, re.DOTALL)
    command = [sys.executable, "-m", "fwconvert", "--version", "demo"]
    environment = {**os.environ, "FWCONVERT_CALLED": "scripts/run"}  # As scripts/run itself sets it.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)

    def steady(text: str) -> str:
        """Return the text without the folder's place and the speed of the machine."""
        text = re.sub(r"^(  folder +).*/", r"\1", text, flags=re.MULTILINE)
        return re.sub(r"^(  time +).*", r"\1", text, flags=re.MULTILINE)

    assert steady(done.stdout) == steady(shown)


def test_files_named_in_the_architecture_are_there() -> None:
    named = set(re.findall(r"`([a-z_]+[a-z_/]*\.py)`", ARCHITECTURE))
    assert len(named) > 20
    places = (REPOSITORY, REPOSITORY / "fwconvert")
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []


@pytest.mark.parametrize(("name", "most"), [("README.md", 190), ("ARCHITECTURE.md", 130)])
def test_what_a_newcomer_reads_first_is_short(name: str, most: int) -> None:
    assert len((REPOSITORY / name).read_text().splitlines()) <= most


def test_the_pictures_of_readme_are_there_small_and_ask_nobody_for_anything() -> None:
    shown = re.findall(r"^!\[[^]]{40,}\]\((\S+)\)$", README, re.MULTILINE)
    assert shown == ["docs/terminal.svg", "docs/page.png"]
    assert sorted(shown) == sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").iterdir())
    for name in shown:
        assert 1000 < (REPOSITORY / name).stat().st_size < 200_000
    drawn = (REPOSITORY / shown[0]).read_text()
    assert "% \N{MIDDLE DOT} " in drawn.replace("&#160;", " ")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|<script", drawn)
