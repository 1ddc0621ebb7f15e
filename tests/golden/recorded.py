"""What fwconvert made on the day that these records were written, and must make for ever.

Everything here was recorded once, from committed sources, and is never made
anew from later code: a difference is a change of output bytes, which is a new
version of the format. `python tests/golden/recorded.py` records what has no
record yet, and leaves what has one alone.
"""

import hashlib
import json
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "support")]

import runner  # noqa: E402  # also for whoever runs this file

from fwconvert.loader import Loader  # noqa: E402

SOURCES = HERE / "sources"
RECORDS = HERE / "records"
PRIVATE = ".fwconvert"
# Of a run with more files one hash is recorded for all: the records are to be read.
MOST_NAMED = 200

# The words of a conversion; most worlds change one thing, the last ones many.
WORLDS: dict[str, str] = {
    "plain": "--shard-tokens 3000",
    "bytes": "--tokenizer bytes --shard-tokens 9999",
    "cl100k": "--tokenizer cl100k_base --shard-tokens 3000",
    "one shard is enough": "--shard-tokens 1M",
    "contiguous": "--shard-tokens 3000 --layout contiguous",
    "contiguous keep": "--shard-tokens 3000 --layout contiguous --last keep --val-tokens 0",
    "eot after": "--shard-tokens 3000 --eot after",
    "last keep": "--shard-tokens 3000 --last keep",
    "last drop": "--shard-tokens 3000 --last drop",
    "no validation": "--shard-tokens 3000 --val-tokens 0",
    "small validation": "--shard-tokens 3000 --val-tokens 700 --name other_name",
    "npy": "--shard-tokens 3000 --format npy",
    "raw": "--val-tokens 3000 --format raw",
    "megatron": "--shard-tokens 3000 --format megatron",
    "datatrove": "--shard-tokens 3000 --format datatrove",
    "datatrove wide": "--shard-tokens 3000 --format datatrove --tokenizer cl100k_base --eot before",
    "zstd": "--shard-tokens 3000 --compress zstd",
    "raw zstd": "--val-tokens 3000 --format raw --compress zstd",
    "score": "--shard-tokens 3000 --min-score 2.5",
    "int score": "--shard-tokens 3000 --min-int-score 3",
    "where": "--shard-tokens 3000 --where len(text)>300|and|language=='en'",
    "documents": "--shard-tokens 3000 --limit-documents 111",
    "tokens": "--shard-tokens 3000 --limit-tokens 10001",
    "many shards": "--tokenizer bytes --shard-tokens 25 --limit-documents 120",
    "all at once": "--shard-tokens 2000 --layout contiguous --format npy --eot after --last keep"
    " --min-score 1.5 --limit-tokens 20000 --compress zstd",
}
# The run that is exported, and the words of the export.
EXPORTS: dict[str, tuple[str, str]] = {
    "plain to npy": ("plain", "--format npy --shard-tokens 1234"),
    "plain to raw": ("plain", "--format raw"),
    "zstd to megatron": ("zstd", "--format megatron --last keep"),
    "where to contiguous": ("where", "--layout contiguous --compress zstd"),
    "raw to datatrove": ("raw", "--format datatrove --eot before --shard-tokens 4000"),
    "tokens to llmc": ("tokens", "--shard-tokens 500 --last drop"),
}
# A run that kill -9 ended while it converted, and one while it joined: the world that each belongs to.
HALVES: dict[str, str] = {"killed in convert": "many shards", "killed in join": "contiguous"}

ORDERS = ("sequential", "shuffled", "documents")


def words(world: str) -> list[str]:
    """Return the words of a world; a bar stands for a space within one."""
    return [word.replace("|", " ") for word in WORLDS[world].split()]


def convert(world: str, out: Path) -> "subprocess.CompletedProcess[str]":
    """Run the program for a world."""
    return runner.command_line("--source", SOURCES, "--out", out, "--workers", 2, "--quiet", *words(world))


def export(name: str, made: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    """Run the program for an export."""
    return runner.command_line("export", made, "-o", out, "--quiet", *EXPORTS[name][1].split())


def measure(out: Path) -> dict[str, Any]:
    """Return what a run came to: nothing in it depends on the session, the time or the machine."""
    receipts = {
        path.relative_to(out / PRIVATE).as_posix(): _receipt(path)
        for folder in ("receipts", "joins")
        for path in sorted((out / PRIVATE / folder).iterdir())
    }
    manifest = json.loads((out / "manifest.json").read_bytes())
    files = runner.tree(out)
    if len(files) > MOST_NAMED:
        files = {f"all {len(files)} files": runner.digest_json(dict(sorted(files.items())))}
    return {"recipe_id": manifest["recipe_id"], "files": files, "receipts": receipts}


def _receipt(path: Path) -> str:
    of_the_day = {"session", "digest", "source_mtime_ns"}
    record = json.loads(path.read_bytes())
    return runner.digest_json({name: value for name, value in record.items() if name not in of_the_day})


def batches(out: Path, order: str) -> str:
    """Return the sha256 of the first hundred batches in an order, as several ranks get them."""
    digest = hashlib.sha256()
    for rank in range(3):
        loader = Loader(out, seq_len=16, batch=4, order=order, seed=7, rank=rank, ranks=3)  # type: ignore[arg-type]
        digest.update(_first(loader, 100))
    return digest.hexdigest()


def rest_after(out: Path, state: dict[str, Any]) -> str:
    """Return the sha256 of what follows a saved state, with another batch size on one rank."""
    loader = Loader(out, seq_len=16, batch=5, order="shuffled", seed=7)
    return hashlib.sha256(_first(loader.resume(state), 50)).hexdigest()


def _first(loader: Loader, count: int) -> bytes:
    taken = [np.ascontiguousarray(batch) for batch, _ in zip(loader, range(count), strict=False)]
    return b"".join(batch.tobytes() for batch in taken)


def state_of(out: Path) -> dict[str, Any]:
    """Return the state of a loader after 37 batches of its second epoch."""
    loader = Loader(out, seq_len=16, batch=4, order="shuffled", seed=7)
    for _ in loader:
        pass
    for _ in zip(loader, range(37), strict=False):
        pass
    return dict(loader.state())


def unpack(half: str, out: Path) -> None:
    """Lay a half-finished run out as it was."""
    # Python before 3.11.4 knows no filters, and later ones want one.
    how: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(RECORDS / f"{half}.tar.gz") as packed:
        packed.extractall(out, **how)


def record(name: str) -> dict[str, Any]:
    """Return what was recorded under a name."""
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text("utf-8"))
    return found


def _keep(name: str, value: object) -> None:
    path = RECORDS / f"{name}.json"
    if not path.exists():
        path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", "utf-8")


def _make(work: Path) -> None:
    RECORDS.mkdir(exist_ok=True)
    for world in WORLDS:
        convert(world, work / world).check_returncode()
        _keep(world, measure(work / world))
    for name, (world, _) in EXPORTS.items():
        export(name, work / world, work / name).check_returncode()
        _keep(name, measure(work / name))
    run = work / "plain"
    _keep("loader", {order: batches(run, order) for order in ORDERS})
    state = state_of(run)
    _keep("loader state", {"state": state, "rest": rest_after(run, state)})
    for half, world in HALVES.items():
        if not (RECORDS / f"{half}.tar.gz").exists():
            _halve(half, world, work / half)


def _halve(half: str, world: str, out: Path) -> None:
    """Kill a conversion, again and again until it is in the middle; pack what it leaves."""
    ready = _is_joining if "join" in half else _is_converting
    for attempt in range(200):
        place = out / str(attempt)
        process = runner.start(SOURCES, place, "--workers", "1", "--quiet", *words(world))
        while process.poll() is None and not ready(place):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        runner.kill_all(process.pid)
        process.communicate()
        if ready(place) and not json.loads((place / "manifest.json").read_bytes())["headline"]["complete"]:
            _pack(place, half)
            return
    raise RuntimeError(f"never caught in the middle: {half}")


def _is_converting(out: Path) -> bool:
    done = len([*(out / PRIVATE / "receipts").glob("*.json")])
    return 1 < done < len([*SOURCES.iterdir()])


def _is_joining(out: Path) -> bool:
    return 1 < len([*(out / PRIVATE / "joins").glob("*.json")]) < 5


def _pack(out: Path, half: str) -> None:
    """Pack a run without what says who made it and where."""
    (out / PRIVATE / "places.json").unlink()
    (out / PRIVATE / "lock").write_text("")
    for path in out.glob(f"{PRIVATE}/sessions/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "host": "somewhere", "pid": 1}))
    manifest = out / "manifest.json"
    text = manifest.read_text()
    host = json.loads(text)["sessions"][0]["host"]
    manifest.write_text(text.replace(f'"host":"{host}"', '"host":"somewhere"'))
    with tarfile.open(RECORDS / f"{half}.tar.gz", "w:gz") as packed:
        packed.add(out, ".", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder))
