"""Check a run manifest for consistency: everything in it that follows from something else in it.

The token counts of the jobs and the recipe determine the token shards, so each
shard's line is computed again and compared.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fwconvert import limits
from fwconvert.errors import ManifestError
from fwconvert.inspection.verify_shard import Problem, one_line
from fwconvert.recipes import Recipe, Rules
from fwconvert.shards.expected import MOST_SHARDS, Account, ExpectedShard, tail
from fwconvert.store import layout
from fwconvert.store.receipts import ShardLine
from fwconvert.store.run_manifest import Headline, JobLine, RunManifest, headline
from fwconvert.tokens import registry

FILE = layout.MANIFEST


def problems(account: Account) -> Iterator[Problem]:
    """Yield every contradiction within the manifest."""
    for what in (
        *_recipe(account.manifest, account.recipe),
        *_headline(account),
        *_jobs(account),
        *_totals(account),
    ):
        yield Problem(FILE, what)
    yield from _shards(account)


def _recipe(manifest: RunManifest, recipe: Recipe) -> Iterator[str]:
    rules, known = recipe.rules, registry.of_rules(recipe.rules)
    if manifest.recipe_id not in recipe.ids:
        yield f"recipe_id is {manifest.recipe_id}, but the recipe's is {recipe.recipe_id}"
    if rules.vocabulary_sha256 != known.sha256:
        yield f"the vocabulary's sha256 is {rules.vocabulary_sha256}, but {known.name}'s is {known.sha256}"
    if rules.token_type != known.token_type:
        yield f"tokens are {rules.token_type}, but those of {rules.tokenizer} are {known.token_type}"
    try:
        recipe.source.check()
    except ManifestError as error:
        yield one_line(error)


def _headline(account: Account) -> Iterator[str]:
    manifest = account.manifest
    wanted = headline(
        manifest.jobs,
        manifest.shards,
        extent=account.extent,
        dropped=account.dropped,
        complete=account.is_whole,
    )
    for name in Headline.__struct_fields__:
        found, sum_of_lines = getattr(manifest.headline, name), getattr(wanted, name)
        if found != sum_of_lines:
            yield f"the headline's {name} is {found}, but the lines below give {sum_of_lines}"
    if not manifest.headline.complete:
        yield f"the run is not finished: {_how_far(account)}; run the same command again"


def _how_far(account: Account) -> str:
    there = {line.name for line in account.manifest.shards}
    done = sum(shard.name in there for shard in account.joined)
    jobs = f"{len(account.jobs):,} of {account.extent:,} jobs"
    return f"{jobs}, {done:,} of {len(account.joined):,} joined token shards" if account.joined else jobs


def _jobs(account: Account) -> Iterator[str]:
    manifest = account.manifest
    sources = {source.path: index for index, source in enumerate(manifest.sources)}
    places = [sources.get(job.path, -1) for job in manifest.jobs]
    known = [place for place in places if place >= 0]
    if any(later <= earlier for earlier, later in pairwise(known)):
        yield "the jobs are not in the order of their sources, each once"
    for job, index in zip(manifest.jobs, places, strict=True):
        for what in (
            *_source(manifest, job, index),
            *_counts(job, manifest.rules),
            *_tail(account, job, index),
        ):
            yield f"the job {job.path} {what}"
    yield from _limit(account)


def _source(manifest: RunManifest, job: JobLine, index: int) -> Iterator[str]:
    if index < 0:
        yield "does not belong to a source of this recipe"
        return
    source = manifest.sources[index]
    if job.bytes != source.bytes:
        yield f"read {job.bytes:,} bytes of a source of {source.bytes:,}"
    if source.sha256 not in (None, job.sha256):
        yield f"read a source with sha256 {job.sha256} instead of {source.sha256}"


def _counts(job: JobLine, rules: Rules) -> Iterator[str]:
    counted = job.documents + job.null_rows + job.empty_rows + job.filtered_rows
    if job.rows != counted:
        kinds = "null rows, empty rows and filtered rows" if job.filtered_rows else "null rows and empty rows"
        yield f"has {job.rows:,} rows, but its documents, {kinds} add up to {counted:,}"
    # A document has at least one token besides its separators unless it was cut, and only those take no byte.
    each = rules.separators_each
    least, most = (1 + each) * job.documents - each * job.cut, job.text_bytes + each * job.documents
    if not least <= job.tokens <= most:
        sizes = f"{job.documents:,} documents of {job.text_bytes:,} bytes"
        yield f"has {job.tokens:,} tokens, which is impossible for {sizes}"


def _limit(account: Account) -> Iterator[str]:
    """Compare the jobs with the limit of the run."""
    rules, jobs = account.manifest.rules, account.manifest.jobs
    for word, limit, found in (
        ("documents", rules.limit_documents, sum(job.documents for job in jobs)),
        ("tokens", rules.limit_tokens, sum(job.tokens for job in jobs)),
    ):
        if limit is not None and found > limit:
            yield f"the jobs have {found:,} {word}, more than the limit of {limit:,}"
    for index, job in account.jobs.items():
        is_last = account.extent == index + 1
        if job.limited and not (is_last and limits.is_reached(rules, jobs)):
            yield f"the job {job.path} was ended by a limit that is not reached there"
        if job.cut and not (job.limited and rules.limit_tokens is not None):
            yield f"the job {job.path} has a document that is cut off, though no limit does that"
    if len(account.jobs) > account.extent:
        yield f"there are {len(account.jobs):,} jobs, but the limit is reached after {account.extent:,}"


def _tail(account: Account, job: JobLine, index: int) -> Iterator[str]:
    rules, taken = account.manifest.rules, account.absorbed
    if job.tokens // rules.block_tokens > MOST_SHARDS + 2 * len(account.manifest.shards):
        yield f"has {job.tokens:,} tokens, too many for the shards of this run"
        return
    absorbed = taken.tokens if taken and taken.source == index else 0
    if index >= 0 and job.tail_tokens != (wanted := tail(rules, index, job.tokens) + absorbed):
        yield f"has a tail of {job.tail_tokens:,} tokens, but its {job.tokens:,} tokens leave {wanted:,}"


def _totals(account: Account) -> Iterator[str]:
    """Compare the totals of the shards with those of the jobs; tails that are not joined yet count too."""
    jobs, complete = account.manifest.jobs, account.manifest.headline.complete
    own = {shard.name for shard in account.own}
    lines = [line for line in account.manifest.shards if complete or line.name in own]
    waiting = account.dropped if complete else sum(job.tail_tokens for job in jobs)
    tokens, wanted = sum(line.tokens for line in lines) + waiting, sum(job.tokens for job in jobs)
    if tokens != wanted:
        yield f"the token shards have {tokens:,} tokens, but the jobs have {wanted:,}"
    documents, wanted = sum(line.documents for line in lines), sum(job.documents for job in jobs)
    if documents > wanted or (complete and documents != wanted and not account.dropped):
        yield f"the token shards have {documents:,} documents, but the jobs have {wanted:,}"


def _shards(account: Account) -> Iterator[Problem]:
    manifest = account.manifest
    lines = {line.name: line for line in manifest.shards}
    # Shards that an unfinished run has yet to join are not a problem of their own.
    due = [*account.own, *(account.joined if manifest.headline.complete else [])]
    for shard in due:
        if shard.name not in lines:
            yield Problem(shard.name, "has no line in the run manifest")
    expected = {shard.name: shard for shard in (*account.own, *account.joined)}
    for line in manifest.shards:
        for what in _files(manifest.rules, line):
            yield Problem(line.name, what)
        if not account.is_open(line.name):
            for what in _line(line, expected.get(line.name)):
                yield Problem(line.name, what)
    for what in _order([line.name for line in manifest.shards]):
        yield Problem(FILE, what)


def _files(rules: Rules, line: ShardLine) -> Iterator[str]:
    size = rules.shard_format.header_bytes + line.tokens * rules.token_bytes
    if line.bytes != size and not rules.is_packed:
        yield f"has {line.bytes:,} bytes in its line, but {line.tokens:,} tokens take {size:,}"
    beside, wanted = [file.name for file in line.sidecars], layout.sidecars(rules, line.name)
    if beside != wanted:
        yield f"has the files {beside} beside it in its line instead of {wanted}"


def _line(line: ShardLine, expected: ExpectedShard | None) -> Iterator[str]:
    if expected is None:
        yield "does not follow from the jobs of this run"
        return
    for name in ("split", "tokens", "segments"):
        found, wanted = getattr(line, name), getattr(expected, name)
        if found != wanted:
            yield f"has {name} {found} in its line instead of {wanted}"


def _order(found: Sequence[str]) -> Iterator[str]:
    for name, times in Counter(found).items():
        if times > 1:
            yield f"the token shard {name} has {times} lines"
    if list(found) != sorted(found):
        yield "the token shards are not sorted by name"
