"""The pictures of README, from real runs: a terminal as SVG, a page as PNG.

The page is the demo's. The terminal shows a run that fetches made-up files from a hub on
loopback over a line of a few MB/s, when it is half done. It is a terminal of its own, on
which the program draws as it does for a user.
"""

import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from pathlib import Path

from bench import corpus, network
from hub_faults import Link
from hub_server import HubServer
from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 92, 24
PAGE_SIZE = (1000, 1240)
MOST_BYTES = 200_000
FILES, TEXT_BYTES, LINE = 14, 60_000_000, 3_000_000
WORDS = ["--version", "sample.json", "--shard-tokens", "1M", "--out", "tokens", "--workers", "2"]

# As rich has it, without fonts from elsewhere and without a mention of them.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 16px sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
# What rich writes to begin a picture in place of the one before it.
REDRAWN = re.compile(r"\r?(?:\x1b\[2K|\x1b\[1A)+")


def main() -> int:
    """Make both pictures; return an exit code."""
    folder = Path(sys.argv[1])
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("chromium is not installed: apt-get install chromium", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        drawn = draw_terminal(Path(work))
        terminal = folder / "terminal.svg"
        terminal.write_text(drawn, encoding="utf-8")
        page = folder / "page.png"
        draw_page(chromium, Path(work), page)
    for made in (terminal, page):
        size = made.stat().st_size
        print(f"{made}  {size:,} bytes")
        if size > MOST_BYTES:
            print(f"{made} is larger than {MOST_BYTES:,} bytes", file=sys.stderr)
            return 1
    return 0


def fwconvert(*words: str) -> list[str]:
    """Return the command line of the program."""
    return [sys.executable, "-m", "fwconvert", *words]


def draw_terminal(work: Path) -> str:
    """Convert on a terminal; return what stood there half-way as SVG."""
    repository = work / "repository"
    corpus.generate(str(repository / "sample/10BT"), TEXT_BYTES, FILES, 2)
    network.pin(str(repository), str(work / "sample.json"))
    with HubServer(repository, link=Link(LINE)) as hub:
        drawn = _on_a_terminal(work, {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(work / "home")})
    pictures = [
        picture.replace("\r\n", "\n").strip("\n")
        for picture in REDRAWN.split(drawn)
        if re.search(r"^(?:\x1b\[[0-9;]*m)*convert", picture) and "left" in picture
    ]
    shares = [float(found[1]) for picture in pictures if (found := re.search(r"([\d.]+)%", picture))]
    nearest = min(range(len(pictures)), key=lambda at: abs(shares[at] - 60))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold green"), shlex.join(["fwconvert", *WORDS])))
    console.print(Text.from_ansi(pictures[nearest]), soft_wrap=True)
    return console.export_svg(title="fwconvert", code_format=SVG, unique_id="terminal")


def _on_a_terminal(work: Path, settings: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    clean = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        fwconvert(*WORDS),
        cwd=work,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, **settings, "TERM": "xterm-256color"},
    ) as process:
        os.close(theirs)
        drawn = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error.
            while piece := os.read(ours, 65_536):
                drawn += piece
    os.close(ours)
    if process.returncode:
        raise SystemExit(drawn.decode(errors="replace"))
    return drawn.decode()


def draw_page(chromium: str, work: Path, picture: Path) -> None:
    """Convert the demo, write its page, and take a picture of how that begins."""
    subprocess.run(fwconvert("--version", "demo", "--quiet"), cwd=work, check=True)
    subprocess.run(
        fwconvert("report", "edu_finewebdemo", "-o", "page.html"),
        cwd=work,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    page = work / "page.html"
    # The folder is nobody's, and another one each time.
    page.write_text(page.read_text(encoding="utf-8").replace(f"{work.resolve()}/", ""), encoding="utf-8")
    width, height = PAGE_SIZE
    subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={work / 'browser'}", f"--window-size={width},{height}",
            f"--screenshot={picture.absolute()}", page.as_uri(),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
