"""What the program says of itself: the examples in its help run, and shells complete its words."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import corpus
import pytest
import runner
import serving

from fwconvert.cli.completion import script
from fwconvert.cli.parser import COMMANDS, command_parser, program

# What an example needs beyond this machine, by a word of it, and what it says where that is missing.
ELSEWHERE = {
    "10B": "offline", "100B": "", "fineweb": "offline", "s3://bucket": "s3", "merge": "no plan",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the examples assume it: with `data`, and a run in `tokens` that they make themselves."""
    folder = tmp_path_factory.mktemp("home")
    for number in range(2):
        texts = corpus.documents(1000 * number, 150)
        corpus.write_columns(
            folder / f"data/{number}.parquet", text=texts, score=[float(at % 6) for at in range(150)]
        )
    return folder


def examples() -> list[str]:
    """Return the commands that the helps show, in an order in which they can be run."""
    parsers = [program(), *map(command_parser, COMMANDS)]
    shown = [parser.epilog.splitlines()[1:] for parser in parsers if parser.epilog]
    lines = [line.strip().split("   ")[0].split("  ")[0].strip() for help_ in shown for line in help_]
    return [*dict.fromkeys(lines)]


def test_each_command_shows_examples() -> None:
    lines = examples()
    for name in COMMANDS:
        assert any(line.startswith(f"fwconvert {name} ") for line in lines)
    assert len(lines) > 20


def test_the_examples_in_the_help_run(home: Path) -> None:
    """Those that need the hub or a bucket get as far as to ask for it."""
    environment = {"HF_HUB_OFFLINE": "1", "FWCONVERT_CACHE": str(home / "cache")}
    # Two runs can be compared when the second has been made.
    for line in sorted(examples(), key=lambda line: "compare" in line):
        # The run of so little data has one token shard, which is joined; a large one has this name, too.
        _, *words = shlex.split(line.replace("train_00000_000", "train_00002_000"))
        if words[:1] == ["plan"]:
            words += ["--no-disk-check", "--workers", "1"]
        if "merge" in words:
            continue  # The run of the examples was not made by ranks: it is complete, which is said below.
        if words[:1] == ["browse"]:
            with serving.served(home / words[1]):  # Until it is ended.
                continue
        ended = runner.command_line(*words, cwd=home, env=environment)
        known = [said for word, said in ELSEWHERE.items() if any(word in one for one in words) and said]
        plans = words[:1] == ["plan"]
        if known and not plans:
            assert ended.returncode in {1, 2}, line
            assert known[0] in ended.stderr.lower(), (line, ended.stderr)
        else:
            assert ended.returncode == 0, (line, ended.stderr)
    runner.assert_tidy_end(runner.command_line("merge", "tokens", cwd=home), 0)


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_a_help_has_groups_and_fits_a_terminal_of_80_columns(words: list[str]) -> None:
    ended = runner.command_line(*words, "--help", env={"COLUMNS": "80"})
    runner.assert_tidy_end(ended, 0)
    assert ended.stdout.startswith(f"usage: {' '.join(['fwconvert', *words])}")
    assert len(ended.stdout.splitlines()[0]) <= 80
    assert "examples:\n  fwconvert" in ended.stdout
    if not words:
        for heading in ("before a run:", "look at a run:", "change a run:", "what to convert:", "fetching:"):
            assert f"\n{heading}\n" in ended.stdout


# --- completion

TYPED = {
    "ver": "verify",
    "plan --band": "--bandwidth",
    "--tok": "--tokenizer",
    "--format me": "megatron",
    "export tokens --last ke": "keep",
    "--version 3": "350B",
    "completion f": "fish",
}


def _needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    return found


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        ended = runner.command_line("completion", shell)
        runner.assert_tidy_end(ended, 0)
        assert ended.stdout == f"{script(shell)}\n"
        (folder / shell).write_text(ended.stdout)
    return folder


@pytest.mark.parametrize("typed", TYPED)
def test_bash_completes(typed: str, scripts: Path) -> None:
    words = ["fwconvert", *typed.split()]
    code = f"""
        source {scripts / "bash"}
        COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
        COMP_LINE={shlex.quote(" ".join(words))}; COMP_POINT=${{#COMP_LINE}}
        complete -p fwconvert >/dev/null || exit 3
        function=$(complete -p fwconvert | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        "$function" fwconvert {shlex.quote(words[-1])} {shlex.quote(words[-2])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert TYPED[typed] in _said([_needs("bash"), "--norc", "-c", code]).split()


@pytest.mark.parametrize("typed", TYPED)
def test_fish_completes(typed: str, scripts: Path) -> None:
    code = f"source {scripts / 'fish'}; complete --do-complete {shlex.quote(f'fwconvert {typed}')}"
    said = _said([_needs("fish"), "--no-config", "-c", code])
    assert TYPED[typed] in [line.split("\t")[0] for line in said.splitlines()]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("typed", TYPED)
def test_zsh_completes(typed: str, scripts: Path) -> None:
    """zsh completes in its line editor alone, so it gets a terminal, and what it has written is printed."""
    home = scripts / "zdot"
    home.mkdir(exist_ok=True)
    shutil.copy(scripts / "zsh", home / "_fwconvert")
    show = """show() { print -r -- "GOT<$BUFFER>" }\nzle -N show\nbindkey '^G' show\n"""
    (home / ".zshrc").write_text(
        f"PS1='ready> '\nfpath+=({home})\nautoload -Uz compinit && compinit -u -D\n{show}"
    )
    code = f"""
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(ZDOTDIR={str(home)!r}, TERM="dumb")
    os.execv({_needs("zsh")!r}, ["zsh", "-i"])
def until(word):
    seen, ends = b"", time.monotonic() + 60
    while word not in seen and time.monotonic() < ends:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096)
    return seen
until(b"ready> ")
os.write(terminal, {f"fwconvert {typed}".encode()!r} + b"\\t\\x07")
print(until(b">\\r\\n").decode(errors="replace"))
os.write(terminal, b"\\x03exit\\n")
"""
    assert f"GOT<fwconvert {' '.join([*typed.split()[:-1], TYPED[typed]])}" in _said(
        [sys.executable, "-c", code]
    )


def _said(line: list[str]) -> str:
    ended = subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
