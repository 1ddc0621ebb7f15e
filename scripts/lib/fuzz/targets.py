"""The targets of the fuzzer: one for each reader of untrusted bytes.

A target calls the package's own functions on the bytes, as a command would. It
must read them, or refuse them with one of the package's errors, within limits
of time and memory. Anything else is a finding. No target needs the fuzzer, so
that every input can be replayed without it.
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
from fwconvert.hub.retry import TransientError

REPOSITORY = Path(__file__).resolve().parents[3]
SEEDS = REPOSITORY / "tests" / "hostile" / "seeds"

# CPU seconds and bytes of memory that an input of a few KB may cost.
MOST_SECONDS = 5.0
MOST_BYTES = 300 * 10**6
_SPARE_BYTES = 10**9


@dataclass(frozen=True)
class Target:
    """A reader of bytes, and how to mutate them."""

    name: str
    description: str
    # Given a scratch folder, returns a function that reads an input.
    make: Callable[[Path], Callable[[bytes], object]]
    mutate: Mutator
    # The errors with which it may refuse.
    allowed: tuple[type[BaseException], ...] = (FwconvertError,)
    # Parts of inputs that are hard to find by chance.
    dictionary: tuple[bytes, ...] = ()

    @property
    def seeds(self) -> Path:
        """The folder of its seeds in the repository."""
        return SEEDS / self.name


@dataclass(frozen=True)
class Outcome:
    """What became of an input: "read", "refused" or "found" (a finding), and why."""

    status: str
    reason: str = ""
    # Equal for findings with the same cause.
    site: str = ""


class Runner:
    """Runs one target on inputs."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self._allowed = target.allowed
        self._read = target.make(scratch)
        self._peak = 0

    def run(self, data: bytes) -> Outcome:
        """Give an input to the target; whatever it raises becomes an outcome."""
        before, started = max(self._peak, _peak_bytes()), time.process_time()
        try:
            self._read(data)
            outcome = Outcome("read")
        except self._allowed as error:
            outcome = Outcome("refused", f"{type(error).__name__}: {error}")
        except MemoryError as error:
            traceback.clear_frames(error.__traceback__)  # They hold it all, and reporting takes some, too.
            return Outcome("found", "took all memory", _site(error))
        except Exception as error:  # noqa: BLE001  # any other error is a finding
            return Outcome("found", "".join(traceback.format_exception(error)), _site(error))
        seconds, self._peak = time.process_time() - started, _peak_bytes()
        if seconds > MOST_SECONDS:
            return Outcome("found", f"took {seconds:.1f} s of CPU time", "slow")
        if self._peak - before > MOST_BYTES:
            return Outcome("found", f"took {self._peak - before:,} bytes of memory", "large")
        return outcome


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for the block: in memory, if possible, since targets may call fsync."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fwconvert-fuzz-", dir=place) as folder:
        yield Path(folder)


def limit_memory() -> None:
    """Limit this process to a GB more than now: what would exhaust a machine fails here."""
    most = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _peak_bytes() -> int:
    """Return the peak memory of this process. ru_maxrss would count its parent's, before exec."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert found is not None, "Linux reports it"
    return int(found[1]) * 1024


def _site(error: Exception) -> str:
    """Return where an error comes from: the innermost line of our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "fwconvert" in Path(frame.filename).parts]
    frame = (ours or frames)[-1]
    return f"{type(error).__name__}-{Path(frame.filename).stem}-{frame.lineno}"


_JSON = (b'"format"', b'"sha256"', b"null", b"true", b"9223372036854775807", b"1e999", b"\\ud800", b"..")
_WHERE = (b" and ", b" or ", b"not ", b" in (", b" is None", b"len(", b"column('", b"contains(")

TARGETS = {
    target.name: target
    for target in (
        Target(
            "hub-listing",
            "a page of the hub's list of files",
            hub.listing,
            mutate.json_text,
            (FwconvertError, TransientError),
            (b'"path"', b'"type"', b'"file"', b'"lfs"', b'"oid"', b'"size"', b".parquet"),
        ),
        Target(
            "hub-headers",
            "status and headers of the hub's answers",
            hub.headers,
            mutate.header_lines,
            (FwconvertError, TransientError),
            (b"Content-Range: bytes ", b"Retry-After: ", b"RateLimit: ", b"Link: ", b"Content-Length: "),
        ),
        Target("parquet", "a source file: footer, rows, text", files.parquet, mutate.parquet),
        Target(
            "source-manifest",
            "a source manifest that a user names",
            folder.source_manifest,
            mutate.json_text,
            dictionary=_JSON,
        ),
        Target(
            "run-manifest",
            "manifest.json: verify, show, trace, status, export, loader",
            folder.run_manifest_file,
            mutate.json_text,
            dictionary=_JSON,
        ),
        Target("plan", "the saved plan of a run", folder.plan, mutate.json_text, dictionary=_JSON),
        Target(
            "receipt",
            "the receipt of a job, held against the recipe",
            folder.job_receipt,
            mutate.json_text,
            dictionary=_JSON,
        ),
        Target(
            "join-receipt",
            "the receipt of a joined shard, held against the recipe",
            folder.join_receipt,
            mutate.json_text,
            dictionary=_JSON,
        ),
        Target(
            "records",
            "the small records: session, quarantine, places, demo corpus, lock, loader state",
            folder.small_records,
            mutate.json_text,
            dictionary=_JSON,
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
            dictionary=(b"'descr'", b"'<u2'", b"'shape'", b"'fortran_order'", b"\x93NUMPY\x01\x00", b"(1,)"),
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
            dictionary=_WHERE,
        ),
    )
}
