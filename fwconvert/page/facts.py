"""What can be known of a run: from its manifest or receipts, its sessions, and the private statistics.

Whatever is missing is None or empty, and the page says so: a run that was made
before there were statistics, one that has only begun, or a copy of the output alone.
Only small records are read, and a bounded number of them.
"""

import datetime as dt
import math
import os
import statistics as figures
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from fwconvert import limits
from fwconvert.errors import FwconvertError, UsageError, printable
from fwconvert.inspection.reader import RunReader, read_manifest
from fwconvert.inspection.verify import Report, verify
from fwconvert.page.reading import Piece, Reader, Token
from fwconvert.page.timeline import SessionFacts, past_sessions, sessions_of, speed
from fwconvert.recipes import Recipe, check_rules
from fwconvert.store import base, layout, receipts, run_manifest, saved_recipe, statistics
from fwconvert.store.base import Store
from fwconvert.store.local import open_store
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt
from fwconvert.store.run_manifest import JobLine, RunManifest
from fwconvert.store.statistics import Histogram, SourceStatistics
from fwconvert.tokens import registry

# Records that are read for a page, and rows of a table.
MOST_STATISTICS = 500
MOST_ROWS = 40
_MOST_CHECKED = 20_000
_SAMPLES = 6
_SAMPLE_TOKENS = 220
_TOP = 12
_AT_ONCE = 16


@dataclass(frozen=True)
class SourceFacts:
    """One source shard."""

    index: int
    path: str
    bytes: int
    job: JobLine | None
    seen: SourceStatistics | None
    # Of its tokens, those that are of a text.
    text_tokens: int = 0
    failed: str = ""
    # Why it differs from the others; "" if it does not.
    stands_out: str = ""

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text for each token of it."""
        return None if self.job is None or not self.text_tokens else self.job.text_bytes / self.text_tokens

    @property
    def mean_length(self) -> float | None:
        """Tokens of a document, its separators included."""
        return self.job.tokens / self.job.documents if self.job is not None and self.job.documents else None


@dataclass(frozen=True)
class SampleFacts:
    """A document that is shown."""

    piece: Piece
    number: int | None
    url: str
    tokens: list[Token]
    more: int


@dataclass(frozen=True)
class FrequentToken:
    """A token, its share of all tokens, and that in the sources where it is least and most frequent."""

    id: int
    text: str
    share: float
    least: float
    most: float
    most_in: str


@dataclass(frozen=True)
class Facts:
    """All that a page says."""

    name: str
    address: str
    manifest: RunManifest
    recipe: Recipe
    complete: bool
    at_work: str
    sources: list[SourceFacts]
    sessions: list[SessionFacts]
    samples: list[SampleFacts]
    sample_problem: str
    frequent: list[FrequentToken]
    domains: list[tuple[str, int]]
    urls_counted: int
    lengths: Histogram | None
    scores: Histogram | None
    score_step: int
    # Of the sources that are converted, those whose statistics are known and those that were asked for.
    known: int
    asked: int
    # Documents that the reference has encoded too; None if no receipts are there.
    audited: int | None
    problems: list[str]
    checked_files: int
    report: Report | None
    made_at: str
    points: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> list[SourceFacts]:
        """The sources that are converted."""
        return [source for source in self.sources if source.job is not None]

    @property
    def text_bytes(self) -> int:
        """Bytes of text that were encoded."""
        return sum(source.job.text_bytes for source in self.sources if source.job is not None)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text for each token of it, in all sources."""
        tokens = sum(source.text_tokens for source in self.sources)
        return self.text_bytes / tokens if tokens else None


@dataclass(frozen=True)
class Opened:
    """A run as it is now."""

    store: Store
    run: RunReader
    complete: bool
    receipts: Mapping[str, Receipt] | None


def open_to_look(out: str | os.PathLike[str]) -> Opened:
    """Return the run in `out` as far as it is; UsageError if there is none."""
    store = open_store(out).listed()
    try:
        recipe = saved_recipe.read_plan(store)
    except UsageError:
        if not base.exists(store, layout.MANIFEST):
            raise
        run = RunReader(out)  # A copy of the output alone.
        return Opened(store, run, run.manifest.headline.complete, None)
    written = _written(store)
    is_ours = written is not None and written.recipe_id == recipe.recipe_id
    if written is not None and is_ours and (written.headline.complete or store.is_remote):
        known = None if store.is_remote else _receipts(store, recipe)
        return Opened(store, RunReader(out, written), written.headline.complete, known)
    check_rules(recipe.rules)
    registry.of_rules(recipe.rules)
    known, joins = _receipts(store, recipe), _joins(store, recipe)
    made = run_manifest.build(recipe, known, joins, sessions_of(store), complete=False)
    return Opened(store, RunReader(out, made), complete=False, receipts=known)


def gather(out: str | os.PathLike[str], *, verified: bool = False) -> Facts:
    """Return what is known of the run in `out`; `verified`: after reading and checking all of it."""
    opened = open_to_look(out)
    store, manifest = opened.store, opened.run.manifest
    recipe = manifest.recipe()
    seen, asked = _statistics(store, manifest)
    sources = _with_outliers(_sources(store, manifest, seen))
    past = past_sessions(store, manifest.sessions)
    reader = Reader(opened.run)
    samples, sample_problem = _samples(opened.run, reader, sources)
    scores, step = _merged_scores([one for one in seen.values() if one.scores is not None])
    domains: Counter[str] = Counter()
    for one in seen.values():
        domains.update(dict(one.domains))
    problems, checked = _problems(store, manifest)
    name = str(out).rstrip("/").rpartition("/")[2] or str(out)
    return Facts(
        name=printable(name if name not in {".", ".."} else os.path.basename(os.path.abspath(out))),  # noqa: PTH100, PTH119
        # As it is typed from any folder: what trainers are told stands on the page, too.
        address=printable(store.uri if store.is_remote else os.path.abspath(out)),  # noqa: PTH100
        manifest=manifest,
        recipe=recipe,
        complete=opened.complete,
        at_work=printable(store.holder()),
        sources=sources,
        sessions=past,
        samples=samples,
        sample_problem=sample_problem,
        frequent=_frequent(sources, reader),
        domains=domains.most_common(20),
        urls_counted=sum(one.urls_counted for one in seen.values()),
        lengths=_merged([one.lengths for one in seen.values()]),
        scores=scores,
        score_step=step,
        known=len(seen),
        asked=asked,
        audited=None if opened.receipts is None else sum(one.audited for one in opened.receipts.values()),
        problems=problems,
        checked_files=checked,
        report=verify(out) if verified else None,
        made_at=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        points=speed(past),
    )


def _written(store: Store) -> RunManifest | None:
    try:
        return read_manifest(store)
    except FwconvertError:
        return None


def _receipts(store: Store, recipe: Recipe) -> dict[str, Receipt]:
    found, names = {}, {*base.record_names(store, layout.RECEIPTS)}
    described = run_manifest.files_described
    for file in recipe.source.files:
        name = layout.receipt(layout.job_key(file.path))
        if name.rpartition("/")[2] not in names:
            continue
        try:
            receipt = receipts.read(store, name, Receipt, recipe.recipe_id, lambda: described(store))
        except (FwconvertError, OSError):
            continue
        if receipt.path == file.path and all(
            layout.is_shard(recipe.rules, one.name) for one in receipt.shards
        ):
            found[file.path] = receipt
    return found


def _joins(store: Store, recipe: Recipe) -> dict[str, JoinReceipt]:
    found = {}
    for name in receipts.join_receipts(store):
        try:
            one = receipts.read(store, name, JoinReceipt, recipe.recipe_id)
        except (FwconvertError, OSError):
            continue
        if layout.is_shard(recipe.rules, one.shard.name):
            found[one.shard.name] = one
    return found


def _statistics(store: Store, manifest: RunManifest) -> tuple[dict[str, SourceStatistics], int]:
    """Return what jobs saw, by source, and of how many this was asked: an even sample if there are many."""
    jobs = manifest.jobs
    many = len(jobs) > MOST_STATISTICS
    asked = [jobs[at * len(jobs) // MOST_STATISTICS] for at in range(MOST_STATISTICS)] if many else [*jobs]

    def one(job: JobLine) -> SourceStatistics | None:
        return statistics.of_source(store, job.path, manifest.recipe_id, job.documents, job.tokens)

    if store.is_remote:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = [*threads.map(one, asked)]
    else:
        found = [*map(one, asked)]
    return {job.path: seen for job, seen in zip(asked, found, strict=True) if seen is not None}, len(asked)


def _sources(store: Store, manifest: RunManifest, seen: Mapping[str, SourceStatistics]) -> list[SourceFacts]:
    jobs = {job.path: job for job in manifest.jobs}
    try:
        failed = {*base.record_names(store, layout.QUARANTINE)}
    except OSError:
        failed = set()
    extent = limits.extent(
        manifest.rules, [jobs.get(file.path) for file in manifest.sources], len(manifest.sources)
    )
    found = []
    for index, file in enumerate(manifest.sources[:extent]):
        name = layout.quarantined(layout.job_key(file.path))
        job = jobs.get(file.path)
        wrong = _failure(store, name) if job is None and name.rpartition("/")[2] in failed else ""
        own = 0 if job is None else max(0, job.tokens - job.documents * manifest.rules.separators_each)
        found.append(SourceFacts(index, file.path, file.bytes, job, seen.get(file.path), own, wrong))
    return found


def _failure(store: Store, name: str) -> str:
    try:
        return printable(base.read_record(store, name, Quarantined).reason[:2000])
    except FwconvertError:
        return "its record is damaged"


# --- what stands out


def _with_outliers(sources: list[SourceFacts]) -> list[SourceFacts]:
    """Mark the sources that differ from the others in bytes per token, length, empty rows or tokens."""
    done = [one for one in sources if one.job is not None and one.job.tokens]
    if len(done) < 3:
        return sources
    tests: list[tuple[str, list[float | None], float]] = [
        ("bytes per token", [one.bytes_per_token for one in done], 0.08),
        ("length of its documents", [one.mean_length for one in done], 0.5),
        ("rows without text", [_blank(one) for one in done], math.inf),
        ("most frequent tokens", [_strangeness(one, done) for one in done], math.inf),
    ]
    floors = {"rows without text": 0.02, "most frequent tokens": 0.08}
    reasons: dict[int, list[str]] = {}
    for name, values, relative in tests:
        known = [value for value in values if value is not None]
        if len(known) < 3:
            continue
        middle = figures.median(known)
        spread = figures.median([abs(value - middle) for value in known])
        noticeable = floors[name] if name in floors else relative * abs(middle)
        for one, value in zip(done, values, strict=True):
            if value is not None and abs(value - middle) > max(6 * spread, noticeable):
                reasons.setdefault(one.index, []).append(name)
    return [replace(one, stands_out=", ".join(reasons.get(one.index, ()))) for one in sources]


def _blank(one: SourceFacts) -> float | None:
    if one.job is None or not one.job.rows:
        return None
    return (one.job.null_rows + one.job.empty_rows) / one.job.rows


def _shares(seen: SourceStatistics) -> dict[int, float]:
    return {token: count / max(1, seen.tokens_counted) for token, count in seen.top_tokens}


def _strangeness(one: SourceFacts, all_of: Sequence[SourceFacts]) -> float | None:
    """Return how far a source's frequent tokens are from those of all others: 0, or up to 1."""
    if one.seen is None or not one.seen.tokens_counted:
        return None
    others = [_shares(other.seen) for other in all_of[:: max(1, len(all_of) // 50)] if other.seen is not None]
    own = _shares(one.seen)
    tokens = {*own, *(token for shares in others for token in shares)}
    middles = {token: figures.median([shares.get(token, 0.0) for shares in others]) for token in tokens}
    return sum(abs(own.get(token, 0.0) - middle) for token, middle in middles.items()) / 2


def _frequent(sources: Sequence[SourceFacts], reader: Reader) -> list[FrequentToken]:
    seen = [(one.path, one.seen) for one in sources if one.seen is not None and one.seen.tokens_counted]
    counted, total = Counter[int](), sum(one.tokens_counted for _, one in seen)
    for _, one in seen:
        counted.update(dict(one.top_tokens))
    found = []
    for token, count in counted.most_common(_TOP):
        shares = [(_shares(one).get(token, 0.0), path) for path, one in seen]
        most, path = max(shares)
        try:
            text = reader.text_of(token)
        except FwconvertError:
            text = ""
        found.append(FrequentToken(token, text, count / max(1, total), min(shares)[0], most, path))
    return found


# --- histograms


def _merged(parts: Sequence[Histogram]) -> Histogram | None:
    parts = [one for one in parts if one.count]
    if not parts:
        return None
    bins: Counter[int] = Counter()
    for one in parts:
        bins.update(dict(one.bins))
    return Histogram(
        count=sum(one.count for one in parts),
        sum=math.fsum(one.sum for one in parts),
        least=min(one.least for one in parts),
        most=max(one.most for one in parts),
        bins=tuple(sorted(bins.items())),
    )


def _merged_scores(parts: Sequence[SourceStatistics]) -> tuple[Histogram | None, int]:
    """Return the scores of all sources, in bins as wide as the widest of them has."""
    step = max((one.score_step for one in parts), default=0)
    found = []
    for one in parts:
        assert one.scores is not None  # noqa: S101  # for mypy
        wider, bins = 10 ** (step - one.score_step), Counter[int]()
        for number, count in one.scores.bins:
            bins[number // wider] += count
        scores = one.scores
        found.append(Histogram(scores.count, scores.sum, scores.least, scores.most, tuple(bins.items())))
    return _merged(found), step


def percentile(lengths: Histogram, share: float) -> float:
    """Return the length below which this share of the documents is, within a bin's width."""
    wanted, passed = share * lengths.count, 0
    for number, count in lengths.bins:
        if passed + count >= wanted:
            within = (wanted - passed) / count
            begin, end = statistics.bin_begins(number), statistics.bin_begins(number + 1)
            return min(max(float(begin * (end / begin) ** within), lengths.least), lengths.most)
        passed += count
    return lengths.most


# --- documents


def _samples(run: RunReader, reader: Reader, sources: Sequence[SourceFacts]) -> tuple[list[SampleFacts], str]:
    """Return some documents, and why there are none."""
    places: list[tuple[str, int, str]] = []
    known = [one for one in sources if one.seen is not None and one.seen.sampled]
    for source in known[:: max(1, -(-len(known) // _SAMPLES))]:
        assert source.seen is not None  # noqa: S101  # for mypy
        for one in source.seen.sampled[: max(1, _SAMPLES // len(known))]:
            try:
                place = reader.in_stream(source.index, one.position)
            except FwconvertError:
                continue
            if place is not None:
                places.append((place.shard, place.offset, one.url))
    if not places:
        lines = [line for line in run.manifest.shards if line.documents]
        places = [(line.name, line.tokens // 2, "") for line in lines[:: max(1, len(lines) // _SAMPLES)]]
    found, problem = [], "" if places else "No token shard is finished yet."
    for name, offset, url in places[:_SAMPLES]:
        try:
            piece = reader.at(name, offset)
            tokens = reader.tokens(piece, piece.begin, _SAMPLE_TOKENS)
            number = reader.number_in_run(piece)
        except (FwconvertError, OSError, ValueError) as error:
            problem = str(error)
            continue
        right = url if piece.begin == offset else ""
        found.append(
            SampleFacts(piece, number, printable(right), tokens, piece.end - piece.begin - len(tokens))
        )
    return found, "" if found else problem


# --- integrity


def _problems(store: Store, manifest: RunManifest) -> tuple[list[str], int]:
    """Return which files are missing or have another size, and how many token shards were looked at."""
    looked_at = manifest.shards[:_MOST_CHECKED]
    found = []
    for line in looked_at:
        if not layout.is_shard(manifest.rules, line.name):
            found.append(f"{line.name!r} in the run manifest is no token shard")
        elif problem := receipts.shard_problem(store, manifest.rules, line):
            found.append(problem)
    return [printable(one) for one in found], len(looked_at)
