"""Statistics: what jobs saw in their sources, and how fast sessions were. For people who look at a run.

No decision rests on these records: a run resumes without them, and one that is
lost, damaged or of another receipt counts as unknown. So whoever writes them
never fails because of them, and whoever reads them gets None instead of an error.
All are bounded, however large a source is or however long a session.
"""

import math
from itertools import pairwise
from typing import ClassVar, TypeVar

from fwconvert import records
from fwconvert.errors import FwconvertError
from fwconvert.records import Part, Record
from fwconvert.store import base, layout
from fwconvert.store.base import Store

# Lengths are counted by their logarithm: so many bins for each doubling, up to 2**48 tokens.
BINS_PER_DOUBLING = 8
_MOST_BINS = BINS_PER_DOUBLING * 48
MOST_SCORE_BINS = 256
MOST_TOP_TOKENS = 32
MOST_DOMAINS = 64
MOST_SAMPLES = 8
_MOST_URL = 2000

# Of a session.
MOST_MOMENTS = 400
MOST_NOTICES = 200
MOST_NOTICE = 500
MOST_RUNNING = 256
_MOST_NUMBER = 2**62


class Histogram(Part, frozen=True):
    """How often values fall into bins, by the bins' numbers; with their exact count, sum and range."""

    count: int
    sum: float
    least: float
    most: float
    bins: tuple[tuple[int, int], ...]


class Sampled(Part, frozen=True):
    """A document that was picked: its row, where it starts in the source's stream of tokens, its length."""

    row: int
    position: int
    tokens: int
    url: str


class SourceStatistics(Record, frozen=True, tag="fwconvert source statistics 1"):
    """What one job saw. Lengths are in bins of `length_bin`, scores in bins as wide as 10**score_step."""

    most_bytes: ClassVar[int] = 2**18
    recipe_id: str
    path: str
    # As in the receipt that it belongs to.
    documents: int
    tokens: int
    # In tokens, separators left out.
    lengths: Histogram
    # The most frequent of so many tokens: ids and how often each is among them.
    tokens_counted: int
    top_tokens: tuple[tuple[int, int], ...]
    # The most frequent hosts of so many URLs; 0 if there is no such column that is cheap to read.
    urls_counted: int
    domains: tuple[tuple[str, int], ...]
    # Of a sample of the documents; None if there is no such column that is cheap to read.
    scores: Histogram | None
    score_step: int
    sampled: tuple[Sampled, ...]


class Moment(Part, frozen=True, array_like=True):
    """How far a session was: seconds since it began, tokens made and bytes fetched by it (-1: none are)."""

    seconds: float
    tokens: int
    fetched: int
    source_bytes: float
    # What it waited for, or the phase: network, workers, --limit, check, join, copy.
    limit: str
    running: int


class RunningOrder(Part, frozen=True, array_like=True):
    """An order in flight: its name, how far it is from 0 to 1, and the tokens that it has made."""

    title: str
    fraction: float
    tokens: int
    node: str


class Arriving(Part, frozen=True, array_like=True):
    """A source that is being fetched: its name, the bytes that have come, and all."""

    title: str
    bytes: int
    size: int
    node: str


class Latest(Part, frozen=True):
    """How far the whole run was when a session last told."""

    phase: str
    units: int
    units_done: float
    jobs: int
    jobs_done: int
    tokens: int
    fetched: int
    connections: int
    running: tuple[RunningOrder, ...]
    downloads: tuple[Arriving, ...] = ()


class Notice(Part, frozen=True, array_like=True):
    """What a session told a person, and when."""

    seconds: float
    text: str


class Timeline(Record, frozen=True, tag="fwconvert timeline 1"):
    """How fast a session was. `began` and `told` are in seconds since 1970."""

    most_bytes: ClassVar[int] = 2**20
    session: str
    began: float
    told: float
    moments: tuple[Moment, ...]
    notices: tuple[Notice, ...]
    # Of which none is here, between the first and the last ones.
    notices_left_out: int
    latest: Latest | None
    # How it ended; "" while it goes on.
    outcome: str = ""


def length_bin(tokens: int) -> int:
    """Return the bin of a document's length, one token or more."""
    return math.floor(math.log2(tokens) * BINS_PER_DOUBLING)


def bin_begins(number: int) -> float:
    """Return the least length of a bin."""
    return float(2 ** (number / BINS_PER_DOUBLING))


def of_source(
    store: Store, path: str, recipe_id: str, documents: int, tokens: int
) -> SourceStatistics | None:
    """Return what the job of a source saw, or None if that is not known.

    A record of another receipt counts as none: the source was converted again since.
    """
    found = _read(store, layout.statistics(layout.job_key(path)), SourceStatistics)
    if found is None or (found.path, found.recipe_id) != (path, recipe_id):
        return None
    return found if (found.documents, found.tokens) == (documents, tokens) and _is_sane(found) else None


def of_session(store: Store, session_id: str) -> Timeline | None:
    """Return how fast a session was, or None if that is not known."""
    found = _read(store, layout.timeline(session_id), Timeline)
    return found if found is not None and found.session == session_id and _is_possible(found) else None


def write(store: Store, name: str, record: Record) -> None:
    """Write such a record if that is possible; it is not worth an error."""
    try:
        content = records.encode(record) + b"\n"
        if len(content) <= type(record).most_bytes:
            store.write(name, content)
    except (FwconvertError, OSError, ValueError):
        return


R = TypeVar("R", bound=Record)


def _read(store: Store, name: str, kind: type[R]) -> R | None:
    try:
        return base.read_record(store, name, kind)
    except (FwconvertError, OSError):
        return None


def _is_sane(found: SourceStatistics) -> bool:
    """Return whether a record may be counted with and drawn: its numbers can be those of a source."""
    lengths, scores = found.lengths, found.scores
    return (
        _fits(lengths, 0, _MOST_BINS)
        and (scores is None or _fits(scores, -(10**6), 10**6))
        and -3 <= found.score_step <= 12
        and _are_counts(found.top_tokens, 2**32)
        and len(found.top_tokens) <= MOST_TOP_TOKENS
        and len(found.domains) <= MOST_DOMAINS
        and all(0 < count <= found.urls_counted and len(name) <= 253 for name, count in found.domains)
        and 0 <= found.tokens_counted <= _MOST_NUMBER
        and 0 <= found.urls_counted <= _MOST_NUMBER
        and len(found.sampled) <= MOST_SAMPLES
        and all(_is_place(one, found.tokens) for one in found.sampled)
    )


def _fits(histogram: Histogram, least: int, most: int) -> bool:
    bins = histogram.bins
    return (
        0 <= histogram.count <= _MOST_NUMBER
        and len(bins) <= max(_MOST_BINS, MOST_SCORE_BINS)
        and all(least <= number <= most and 0 < count <= histogram.count for number, count in bins)
        and histogram.least <= histogram.most
        and all(abs(value) < 1e300 for value in (histogram.sum, histogram.least, histogram.most))
    )


def _are_counts(pairs: tuple[tuple[int, int], ...], most: int) -> bool:
    return all(0 <= number < most and 0 < count <= _MOST_NUMBER for number, count in pairs)


def _is_place(one: Sampled, tokens: int) -> bool:
    inside = 0 <= one.position < tokens and 0 < one.tokens <= tokens - one.position
    return inside and 0 <= one.row <= _MOST_NUMBER and len(one.url) <= _MOST_URL


def _is_possible(found: Timeline) -> bool:
    seconds = [moment.seconds for moment in found.moments]
    return (
        len(seconds) <= MOST_MOMENTS
        and len(found.notices) <= MOST_NOTICES
        and all(0 <= one <= 1e9 for one in seconds)
        and all(one <= other for one, other in pairwise(seconds))
        and all(0 <= moment.tokens <= _MOST_NUMBER for moment in found.moments)
        and all(-1 <= moment.fetched <= _MOST_NUMBER for moment in found.moments)
        and all(0 <= abs(time) <= 1e11 for time in (found.began, found.told))
        and all(0 <= notice.seconds <= 1e9 for notice in found.notices)
        and (found.latest is None or _is_drawable(found.latest))
    )


def _is_drawable(latest: Latest) -> bool:
    coming = latest.downloads
    return max(len(latest.running), len(coming)) <= MOST_RUNNING and all(
        0 <= one.bytes <= _MOST_NUMBER and 0 <= one.size <= _MOST_NUMBER for one in coming
    )


def short_url(url: str) -> str | None:
    """Return a URL as a record may have it, or None if it is too long."""
    return url if len(url) <= _MOST_URL else None
