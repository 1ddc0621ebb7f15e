"""A look at the text of a run before it begins: some row groups are read and encoded, for at most seconds.

What is looked at is spread over the files and over each of them, so that a source that
differs from the others counts for itself. It tells how many tokens a byte gives, what
the filter keeps, and, since as many processes look as there will be workers, how fast
this machine converts. Files that are not here are read by ranges; how fast they would
come is measured apart.

Nothing of it is proven, so it is read in processes that are ended if they want too
much memory or time. Whatever fails is passed over: a plan is an estimate without it,
too. But if no source has the columns that a recipe asks for, that is the caller's mistake.
"""

import hashlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa

from fwconvert import machine
from fwconvert.errors import ColumnError, FwconvertError, RemoteError, SourceError, UsageError
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.ranged import RangedFile
from fwconvert.hub.remote import Remote
from fwconvert.hub.retry import Retry, TransientError, with_retries
from fwconvert.options import Encoder, Options
from fwconvert.processes import ProcessLimits, call_apart
from fwconvert.recipes import Recipe, Rules, SourceShard
from fwconvert.run import request
from fwconvert.run.estimate import Sample, Yield
from fwconvert.run.inputs import Input, workers_at_once
from fwconvert.sources import demo, filters, readers, reading
from fwconvert.sources.catalog import Size
from fwconvert.tokens import defined, registry, tokenizer
from fwconvert.tokens.spec import Loading

# For how long each process looks. On a machine that is busy it looks a little longer at something.
_SECONDS, _MOST_SECONDS = 2.0, 8.0
_FEWEST_GROUPS = 4
# How many files are looked at, if they are here or have to be asked for; and how many row groups of each.
_FILES, _REMOTE_FILES = 16, 6
_GROUPS, _REMOTE_GROUPS = 24, 2
# A row group of FineWeb-Edu has 5 MB. One of another writer may have a gigabyte.
_MOST_BYTES = 8 * 2**20
# For one file of a remote, and for all of them: a plan is waited for.
_RETRY_SECONDS = 3.0
_REMOTE_SECONDS = 12.0
_CONNECTIONS = 8
# Made-up texts to measure with where nothing can be looked at: 1.5 MB, and how many at a time.
_DEMO_TEXTS, _DEMO_BATCH = 1_000, 250
_GUARD = ProcessLimits(memory_bytes=3 * 2**29, stall_seconds=90.0)
# The golden ratio: multiples of it, without their whole part, lie evenly however many there are.
_GOLDEN = 0.6180339887498949


def listed(recipe: Recipe) -> tuple[Recipe, str]:
    """Return the recipe with the files of its version, if the hub lists them in time; else why not."""
    if recipe.source.files:
        return recipe, ""
    source = recipe.source
    dataset = Dataset(source.dataset, source.revision)
    retry = _retry()
    try:
        files = with_retries(
            lambda: dataset.files(source.folder, lambda size: retry.received(size, source.dataset)),
            source.dataset,
            retry,
        )
    except (RemoteError, SourceError) as error:
        return recipe, _first_line(error)
    return request.with_files(recipe, files), ""


def look(recipe: Recipe, inputs: Input, options: Options, *, bandwidth: float | None = None) -> Sample:
    """Return what a sample of the text says. `bandwidth` is not measured if it is known.

    Raises UsageError if no source that was looked at has the columns.
    """
    spec = registry.of_rules(recipe.rules)
    try:
        encoder, _ = registry.kind_of(spec).choose_encoder(spec, options.encoder, call_apart, lambda: None)
    except UsageError:
        raise
    except FwconvertError as error:
        return Sample(reason=_first_line(error))
    parts = _parts(recipe, inputs)
    workers = max(1, min(workers_at_once(recipe, options), machine.cores()))
    question = _Question(
        recipe.rules, defined.remembered(spec), encoder, options.thread_count(workers), bandwidth is None
    )
    shares = [tuple(parts[number::workers]) for number in range(workers)]
    with ThreadPoolExecutor(workers) as processes:
        asked = [replace(question, parts=share, measures=number == 0) for number, share in enumerate(shares)]
        answers = [*processes.map(_ask, asked)]
    return _sample(recipe, answers, encoder, workers)


@dataclass(frozen=True)
class _Part:
    """Row groups of one file to look at, by their places in it from 0 to 1."""

    source: SourceShard
    place: Path | Remote
    at: float


@dataclass(frozen=True)
class _Question:
    rules: Rules
    # The file that defines the tokenizer, if it is one that the user has named.
    definition: bytes
    encoder: Encoder
    threads: int
    # Whether the speed of the remote is to be measured, in this process.
    measures: bool
    parts: tuple[_Part, ...] = ()


@dataclass
class _Answer:
    """What one process has seen."""

    sizes: dict[str, Size] = field(default_factory=dict)
    yields: dict[str, Yield] = field(default_factory=dict)
    row_groups: int = 0
    remote_groups: int = 0
    is_encoded: bool = True
    tokens: int = 0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    # Why a file could not be looked at, and of those the ones that lack a column.
    reasons: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)


def _parts(recipe: Recipe, inputs: Input) -> list[_Part]:
    """Return what to look at, the most telling first: one row group of each file, then another, ..."""
    files = recipe.source.files
    places = {source: inputs.readable_apart(source) for source in _spread(files, _FILES)}
    if any(not isinstance(place, Path) for place in places.values()):
        places = {source: inputs.readable_apart(source) for source in _spread(files, _REMOTE_FILES)}
    rounds = []
    for number, (source, place) in enumerate(places.items()):
        groups = _GROUPS if isinstance(place, Path) else _REMOTE_GROUPS
        begin = (number + 1) * _GOLDEN
        rounds.append([_Part(source, place, (begin + at * _GOLDEN) % 1) for at in range(groups)])
    return [part for group in zip_longest(*rounds) for part in group if part is not None]


def _spread(files: Sequence[SourceShard], most: int) -> list[SourceShard]:
    """Return at most so many of the files, the first among them, evenly spread."""
    count = min(most, len(files))
    return [files[number * len(files) // count] for number in range(count)]


def _ask(question: _Question) -> _Answer:
    try:
        return call_apart(_look, question, _GUARD)
    except FwconvertError as error:  # It was ended, or none can be started.
        return _Answer(reasons=[_first_line(error)])


def _sample(recipe: Recipe, answers: Sequence[_Answer], encoder: Encoder, workers: int) -> Sample:
    unfit = [reason for answer in answers for reason in answer.unfit]
    groups = sum(answer.row_groups for answer in answers)
    if unfit and not groups:
        count = len(_spread(recipe.source.files, _FILES))
        raise UsageError(
            f"{unfit[0]}\n  -> fix the command before anything is fetched:"
            f" {count} of {len(recipe.source.files):,} sources were looked at, and none fits"
        )
    reasons = [reason for answer in answers for reason in answer.reasons]
    rates = [answer.tokens / answer.seconds for answer in answers if answer.seconds and answer.is_encoded]
    speed = Sample(encoder=encoder, workers=workers, tokens_per_second=sum(rates))
    if not groups:
        return replace(speed, reason=reasons[0] if reasons else "")
    yields: dict[str, Yield] = {}
    for answer in answers:
        for path, gave in answer.yields.items():
            yields[path] = yields.get(path, Yield()) + gave
    return replace(
        speed,
        sampled_from="remote" if any(answer.remote_groups for answer in answers) else "files",
        row_groups=groups,
        sizes={path: size for answer in answers for path, size in answer.sizes.items()},
        yields=yields,
        is_encoded=all(answer.is_encoded for answer in answers),
        bytes_per_second=max(answer.bytes_per_second for answer in answers),
    )


# --- in a process of its own


def _look(question: _Question) -> _Answer:
    """Read and encode row groups until the time is over."""
    answer = _Answer()
    spent: list[tuple[int, float]] = []
    with _tokenizer(question) as encoder:
        answer.is_encoded = encoder is not None
        started, seconds = time.monotonic(), _REMOTE_SECONDS if _remote_of(question) else _SECONDS
        for part, read, cost in _read(question, answer):
            begun = time.monotonic()
            tokens = sum(_encoded(batch, question.rules, encoder) for batch in read.batches)
            spent.append((tokens, time.monotonic() - begun + cost))
            _count(answer, part, read, tokens)
            passed = time.monotonic() - started
            if passed > (seconds if len(spent) >= _FEWEST_GROUPS else max(seconds, _MOST_SECONDS)):
                break
        if not answer.row_groups and not answer.unfit and encoder is not None:
            spent = _measured(question, encoder)
    # The first is slower, because caches are cold.
    warm = spent[1:] or spent
    answer.tokens, answer.seconds = sum(one[0] for one in warm), sum(one[1] for one in warm)
    remote = _remote_of(question)
    if question.measures and remote is not None and answer.remote_groups:
        sources = [part.source for part in question.parts if not isinstance(part.place, Path)]
        answer.bytes_per_second = _bandwidth(remote, [*dict.fromkeys(sources)])
    return answer


def _measured(question: _Question, encoder: tokenizer.Tokenizer) -> list[tuple[int, float]]:
    """Encode made-up text; return how many tokens each batch gave, and in how many seconds."""
    texts, spent, spec = demo.texts(_DEMO_TEXTS), [], encoder.spec
    for begin in range(0, len(texts), _DEMO_BATCH):
        batch = pa.array(texts[begin : begin + _DEMO_BATCH], pa.string())
        begun = time.monotonic()
        stream = tokenizer.place_eot(encoder.encode(batch), spec.eot, question.rules.eot, spec.bos)
        hashlib.sha256(stream.tokens.tobytes())
        spent.append((len(stream.tokens), time.monotonic() - begun))
    return spent


def _remote_of(question: _Question) -> Remote | None:
    return next((part.place for part in question.parts if not isinstance(part.place, Path)), None)


@contextmanager
def _tokenizer(question: _Question) -> Iterator[tokenizer.Tokenizer | None]:
    """Load the tokenizer, without a trace on the disk; None if its vocabulary cannot be had."""
    spec = registry.of_rules(question.rules)
    if question.definition:
        defined.remember(question.definition)
    with tempfile.TemporaryDirectory(prefix="fwconvert-plan-") as folder:
        try:
            registry.kind_of(spec).provide(spec, Path(folder))
            yield registry.load(spec, Path(folder), Loading(question.encoder, question.threads, Path(folder)))
        except (FwconvertError, OSError):
            yield None


def _encoded(batch: reading.TextBatch, rules: Rules, encoder: tokenizer.Tokenizer | None) -> int:
    """Do with a batch what a worker does; return how many tokens it gives."""
    if encoder is None:
        return registry.estimate_tokens(rules, batch.text_bytes, len(batch.texts))
    spec = encoder.spec
    stream = tokenizer.place_eot(encoder.encode(batch.texts), spec.eot, rules.eot, spec.bos)
    hashlib.sha256(stream.tokens.tobytes())
    return len(stream.tokens)


def _read(question: _Question, answer: _Answer) -> Iterator[tuple[_Part, reading.Sampled, float]]:
    """Yield the rows of each part that can be read, and how long reading them took, without the network."""
    sieve, column = filters.of(question.rules), question.rules.text_column
    seen: set[tuple[str, int]] = set()
    failed: set[str] = set()

    def read(part: _Part) -> tuple[reading.Sampled, float] | SourceError | RemoteError | None:
        file: Path | RangedFile
        if isinstance(part.place, Path):
            file, name = part.place, str(part.place)
        else:
            file, name = (
                RangedFile(part.place, part.source, _retry()),
                f"{part.place.name}/{part.source.path}",
            )
        if part.source.path in failed:
            return None
        begun = time.thread_time()  # Of this thread alone: waiting for the network is counted elsewhere.
        try:
            what = reading.Wanted(part.at, column, sieve, _MOST_BYTES)
            reader = readers.of(part.source.path, file)
            found = reader.sample(file, name, what, lambda group: is_new(part.source.path, group))
        except (SourceError, RemoteError) as error:
            failed.add(part.source.path)  # Once is enough: a bad footer may take seconds to read.
            return error
        if found is None:
            return None
        # A worker hashes the whole file, so those bytes too.
        size = part.source.bytes * found.footer_bytes // max(1, found.size.text_bytes)
        hashlib.sha256(bytes(min(size, _MOST_BYTES)))
        return found, time.thread_time() - begun

    def is_new(path: str, group: int) -> bool:
        """Return whether nobody has read this row group: a second time it would be encoded faster."""
        size = len(seen)
        seen.add((path, group))
        return len(seen) > size

    def told(part: _Part, found: object) -> Iterator[tuple[_Part, reading.Sampled, float]]:
        if isinstance(found, Exception):
            answer.reasons.append(_first_line(found))
            answer.unfit += [str(found)] if isinstance(found, ColumnError) else []
        elif isinstance(found, tuple):
            yield part, *found

    here = [part for part in question.parts if isinstance(part.place, Path)]
    for part in here:
        yield from told(part, read(part))
    away = [part for part in question.parts if not isinstance(part.place, Path)]
    pool = ThreadPoolExecutor(_CONNECTIONS)
    try:
        for part, coming in [(part, pool.submit(read, part)) for part in away]:
            yield from told(part, coming.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _count(answer: _Answer, part: _Part, read: reading.Sampled, tokens: int) -> None:
    path = part.source.path
    gave = Yield(
        rows=read.rows,
        documents=sum(len(batch.texts) for batch in read.batches),
        footer_bytes=read.footer_bytes,
        text_bytes=sum(batch.text_bytes for batch in read.batches),
        tokens=tokens,
    )
    answer.sizes[path] = read.size
    answer.yields[path] = answer.yields.get(path, Yield()) + gave
    answer.row_groups += 1
    answer.remote_groups += not isinstance(part.place, Path)


def _bandwidth(remote: Remote, sources: Sequence[SourceShard]) -> float:
    """Return how many bytes of these files come in a second, by several connections for about two seconds."""
    begun, came = time.monotonic(), [0] * _CONNECTIONS
    ends = begun + _SECONDS

    def fetch(number: int) -> None:
        source = sources[number % len(sources)]
        # Each begins elsewhere, so that no cache on the way answers twice.
        begin = source.bytes * number // _CONNECTIONS
        lost = suppress(TransientError, RemoteError, SourceError)
        with lost, remote.open_range(source.path, begin) as stream:
            for part in stream:
                came[number] += len(part)
                if time.monotonic() > ends:
                    return

    threads = [threading.Thread(target=fetch, args=[number], daemon=True) for number in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    return sum(came) / max(1e-3, time.monotonic() - begun)


def _retry() -> Retry:
    return Retry(_RETRY_SECONDS, threading.Event(), lambda _: None, deadline=_REMOTE_SECONDS)


def _first_line(error: BaseException) -> str:
    """Return what an error says first; its values are in no plan."""
    return str(error).partition("\n")[0]
