"""What crosses from the scheduler to a worker and back: frozen values and names, never a live object.

A tokenizer, a lock or an open file in here would be the "cannot pickle CoreBPE"
failure that this tool was made to end. Nor is there a path that only the
scheduler's machine understands: a run is the URI of its store, and a source says
where it can be read.

While an order is carried out, a Reporter passes progress one way and a stop
request the other. Light on purpose: the scheduler's process imports it too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from fwconvert.options import Encoder
from fwconvert.recipes import Rules, SourceShard
from fwconvert.shards.passages import Passage
from fwconvert.store import layout
from fwconvert.store.receipts import Absorbed, Counts, JoinReceipt, Receipt, Segment


@dataclass(frozen=True)
class RunContext:
    """What all orders of a session have in common."""

    # The URI of the run's store.
    run: str
    recipe_id: str
    rules: Rules
    session: str
    encoder: Encoder = "reference"
    threads: int = 1
    # Whether the run has names of an earlier version, whose numbers may be longer than planned.
    plain_names: bool = False
    # The folder of the worker's machine for files on their way to a remote store; "": its default.
    scratch: str = ""


@dataclass(frozen=True)
class SourceFile:
    """Where the worker's machine has a source shard: a path on a disk of its own or a shared one."""

    path: str
    # Whether its sha256 was compared when it was put there.
    proven: bool = False
    # The machine of an engine that has it on a disk of its own; "": all workers see it.
    node: str = ""

    @property
    def local(self) -> Path:
        """The file, which may be missing."""
        return Path(self.path)


@dataclass(frozen=True)
class Exported:
    """A source shard that was converted in another run: its tokens are taken from there."""

    # The URI of that run's store, and its rules.
    run: str
    rules: Rules
    passages: tuple[Passage, ...]
    # What was read for it, and what was seen in it.
    bytes: int
    sha256: str
    counts: Counts


@dataclass(frozen=True)
class ConvertOrder:
    """Convert one source shard: one job."""

    context: RunContext
    source: SourceShard
    source_index: int
    file: SourceFile
    # What the run's limit leaves for it; None: all that the source has.
    allowed_documents: int | None = None
    allowed_tokens: int | None = None
    # Where its tokens are taken from, if it is not read itself.
    exported: Exported | None = None

    @property
    def key(self) -> str:
        """The order's name in file names."""
        return layout.job_key(self.source.path)

    @property
    def title(self) -> str:
        """The order's name for people."""
        return self.source.path

    @property
    def size(self) -> int:
        """How much there is to do: the bytes of the source."""
        return self.source.bytes


@dataclass(frozen=True)
class JoinOrder:
    """Make one joined shard from tails; `tails` are the keys of the jobs of its segments."""

    context: RunContext
    name: str
    split: layout.Split
    segments: tuple[Segment, ...]
    tails: tuple[str, ...]
    # The beginning of the shard, if it is a job's shard that takes in what is left.
    absorbed: Absorbed | None = None
    # Where the tokens of each source begin, for the shard's line.
    places: tuple[tuple[int, int], ...] = ()
    # Tails that are no longer needed, to be removed first: it would keep the scheduler from its work.
    spent: tuple[str, ...] = ()
    # The sha256 of each tail and of its index, by which copies of them are proven.
    proofs: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """The order's name in file names."""
        return self.name

    @property
    def title(self) -> str:
        """The order's name for people."""
        return self.name

    @property
    def size(self) -> int:
        """How much there is to do: the tokens of the shard."""
        own = self.absorbed.tokens if self.absorbed else 0
        return own + sum(segment.tokens for segment in self.segments)


Order = ConvertOrder | JoinOrder

# job: the order's own error. output: the run cannot be written, so it stops. stopped: a stop request.
# lost: the worker died. unready: the worker could not begin, which is no order's fault.
# unfetched: the source cannot be fetched.
FailureKind = Literal["job", "output", "stopped", "lost", "unready", "unfetched"]


@dataclass(frozen=True)
class Failure:
    """Why an order was not carried out."""

    kind: FailureKind
    message: str
    traceback: str = ""
    # By SIGKILL, as the kernel does when memory runs out.
    killed: bool = False


@dataclass(frozen=True)
class Unfetched:
    """An order that cannot be carried out, because its source cannot be fetched."""

    order: ConvertOrder
    failure: Failure


# An order whose file is there, one whose file cannot be fetched, or None: nothing yet, ask again.
Ready = Iterator[ConvertOrder | Unfetched | None]

Outcome = Receipt | JoinReceipt | Failure


class Reporter(Protocol):
    """Passes progress from a worker to whoever scheduled its order, and a stop request back."""

    def show(self, done: int, total: int) -> None:
        """Report how much of the order is done."""

    def show_text(self, tokens: int, text_bytes: int) -> None:
        """Report how many tokens the order has made so far, and from how much text."""

    def beat(self) -> None:
        """Report that the worker is alive. For places where the order cannot stop."""

    def check(self) -> None:
        """Report that the worker is alive; raise Stopped if it is asked to stop."""


class NoReporter:
    """Reports to nobody, and is never asked to stop."""

    def show(self, done: int, total: int) -> None:
        """Drop it."""

    def show_text(self, tokens: int, text_bytes: int) -> None:
        """Drop it."""

    def beat(self) -> None:
        """Drop it."""

    def check(self) -> None:
        """Go on."""
