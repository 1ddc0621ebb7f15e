"""The targets of the fuzzer: one for each reader of bytes that somebody else may have written.

A target calls the package's own functions on the bytes, as a command would. It
keeps its promise if they are read or refused: with one of the package's errors,
within its seconds and its memory. Anything else is a finding. No target needs
the fuzzer, so that every input can be played once more without it.
"""

import os
import re
import resource
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz import files, folder, hub, mutate
from fuzz.mutate import Mutator
from fwconvert.errors import FwconvertError
from fwconvert.hub.retry import Passing

REPOSITORY = Path(__file__).resolve().parents[3]
SEEDS = REPOSITORY / "tests" / "hostile" / "seeds"

# Seconds of the processor, and bytes, that an input of a few KB may cost.
MOST_SECONDS = 5.0
MOST_BYTES = 300 * 10**6
_SPARE_BYTES = 10**9


@dataclass(frozen=True)
class Target:
    """A reader, and what may be done to the bytes that it is given."""

    name: str
    about: str
    # Given a folder of its own, returns what reads an input.
    make: Callable[[Path], Callable[[bytes], object]]
    mutate: Mutator
    # How it may refuse.
    allowed: tuple[type[BaseException], ...] = (FwconvertError,)
    # Pieces of inputs that nobody finds by chance.
    words: tuple[bytes, ...] = ()

    @property
    def seeds(self) -> Path:
        """The folder of its inputs that are in the repository."""
        return SEEDS / self.name


@dataclass(frozen=True)
class Played:
    """What came of an input: "read", "refused" or "found", and why."""

    ended: str
    reason: str = ""
    # Equal for findings that have the same cause.
    site: str = ""


class Player:
    """Plays inputs to one target."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self._allowed = target.allowed
        self._read = target.make(scratch)
        self._peak = 0

    def play(self, data: bytes) -> Played:
        """Give an input to the target; never raise for what comes of it."""
        before, begun = max(self._peak, _peak_bytes()), time.process_time()
        try:
            self._read(data)
            played = Played("read")
        except self._allowed as error:
            played = Played("refused", f"{type(error).__name__}: {error}")
        except MemoryError as error:
            traceback.clear_frames(error.__traceback__)  # They hold all of it, and to tell takes some, too.
            return Played("found", "took all the memory that there was", _site(error))
        except Exception as error:  # noqa: BLE001  # that there is none is what we are here for
            return Played("found", "".join(traceback.format_exception(error)), _site(error))
        seconds, self._peak = time.process_time() - begun, _peak_bytes()
        if seconds > MOST_SECONDS:
            return Played("found", f"took {seconds:.1f} s of the processor", "slow")
        if self._peak - before > MOST_BYTES:
            return Played("found", f"took {self._peak - before:,} bytes of memory", "large")
        return played


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Have a folder during the block: in memory, if that can be, since inputs may be synced to the disk."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fwconvert-fuzz-", dir=place) as folder:
        yield Path(folder)


def bound_memory() -> None:
    """Let this process have a GB more than now and no more: what would take a machine down fails here."""
    most = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _peak_bytes() -> int:
    """Return the most memory that this process has had. ru_maxrss would count its parent's, before exec."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert found is not None, "Linux tells it"
    return int(found[1]) * 1024


def _site(error: Exception) -> str:
    """Return where an error comes from: the innermost line that is ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "fwconvert" in Path(frame.filename).parts]
    frame = (ours or frames)[-1]
    return f"{type(error).__name__}-{Path(frame.filename).stem}-{frame.lineno}"


_JSON = (b'"format"', b'"sha256"', b"null", b"true", b"9223372036854775807", b"1e999", b"\\ud800", b"..")

TARGETS = {
    target.name: target
    for target in (
        Target(
            "hub-listing",
            "a page of the hub's list of files",
            hub.listing,
            mutate.json_text,
            (FwconvertError, Passing),
            (b'"path"', b'"type"', b'"file"', b'"lfs"', b'"oid"', b'"size"', b".parquet"),
        ),
        Target(
            "hub-headers",
            "status and headers of the hub's answers",
            hub.headers,
            mutate.header_lines,
            (FwconvertError, Passing),
            (b"Content-Range: bytes ", b"Retry-After: ", b"RateLimit: ", b"Link: ", b"Content-Length: "),
        ),
        Target("parquet", "a source file: footer, rows, text", files.parquet, mutate.parquet),
        Target(
            "source-manifest",
            "a source manifest that a user names",
            folder.source_manifest,
            mutate.json_text,
            words=_JSON,
        ),
        Target(
            "run-manifest",
            "manifest.json: verify, show, trace, status, export, loader",
            folder.run_manifest_file,
            mutate.json_text,
            words=_JSON,
        ),
        Target("plan", "the saved plan of a run", folder.plan, mutate.json_text, words=_JSON),
        Target(
            "receipt",
            "the receipt of a job, held against the recipe",
            folder.job_receipt,
            mutate.json_text,
            words=_JSON,
        ),
        Target(
            "join-receipt",
            "the receipt of a joined shard, held against the recipe",
            folder.join_receipt,
            mutate.json_text,
            words=_JSON,
        ),
        Target(
            "records",
            "the small records: session, quarantine, places, demo corpus, lock, loader state",
            folder.small_records,
            mutate.json_text,
            words=_JSON,
        ),
        Target(
            "document-index",
            "a document index: verify, show, trace, loader",
            folder.document_index,
            mutate.numbers,
        ),
        Target(
            "sidecars",
            "what Megatron-LM and datatrove want beside a token shard, as verify reads it",
            folder.sidecars,
            mutate.numbers,
        ),
        Target(
            "shard",
            "a token shard: llm.c's, numpy's, headerless",
            files.token_shard,
            mutate.shard_header,
            words=(b"'descr'", b"'<u2'", b"'shape'", b"'fortran_order'", b"\x93NUMPY\x01\x00", b"(1,)"),
        ),
        Target(
            "zstd",
            "a compressed token shard",
            files.compressed_shard,
            mutate.zstd_frame,
        ),
        Target(
            "where",
            "an expression of --where, also in a manifest, and its evaluation",
            files.where_expression,
            mutate.expression,
            words=(b" and ", b" or ", b"not ", b" in (", b" is None", b"len(", b"column('", b"contains("),
        ),
    )
}
