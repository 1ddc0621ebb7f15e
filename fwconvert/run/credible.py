"""Whether the numbers of a receipt can be: what follows from the recipe alone, before any file is looked at.

A digest proves that a receipt is as it was written, not who wrote it. One whose
numbers contradict each other would have the join cut tails without end, or ask
for sources that there are not.
"""

from itertools import pairwise

from fwconvert.recipes import Recipe, Rules
from fwconvert.store import layout
from fwconvert.store.receipts import JoinReceipt, Receipt, ShardLine

# An entry of a tail's document index; the tail of a whole source may have more than 2**32 tokens.
_SHORT_ENTRY, _LONG_ENTRY = 8, 12


def job_can_be(recipe: Recipe, index: int, job: Receipt) -> bool:
    """Tell whether the job of a source can have given these token shards, and this tail."""
    rules, tail = recipe.rules, job.tail
    entry = _LONG_ENTRY if rules.layout == "contiguous" else _SHORT_ENTRY
    is_whole = (
        min(tail.tokens, tail.documents, job.source_bytes) >= 0
        and tail.bytes == rules.kind.header_bytes + tail.tokens * rules.token_bytes
        and tail.index_bytes == tail.documents * entry
        and sum(line.tokens for line in job.shards) + tail.tokens == job.counts.tokens
    )
    return is_whole and _shards_can_be(rules, index, job)


def join_can_be(recipe: Recipe, join: JoinReceipt) -> bool:
    """Tell whether a joined shard can have been made of tails of this run."""
    sources, taken, line = len(recipe.source.files), join.taken, join.shard
    begin = taken.tokens if taken else 0
    ends = [begin, *(segment.first + segment.tokens for segment in join.segments)]
    named = [*(segment.source for segment in join.segments), *(source for source, _ in line.segments)]
    return (
        all(0 <= source < sources for source in [*named, *([taken.source] if taken else [])])
        and all(one.source < other.source for one, other in pairwise(join.segments))
        and all(segment.tokens > 0 and segment.start >= 0 for segment in join.segments)
        and all(segment.first == end for segment, end in zip(join.segments, ends, strict=False))
        and begin >= 0
        and line.tokens == ends[-1]
        and _file_can_be(recipe.rules, line)
    )


def _shards_can_be(rules: Rules, index: int, job: Receipt) -> bool:
    """Tell whether a job's shards are its blocks, each full, and its tail fills none."""
    if rules.layout == "contiguous":
        return not job.shards
    block, has_val = rules.block_tokens, index == 0 and rules.val_tokens > 0
    sizes = [rules.val_tokens, block] if has_val else [block, block]
    for number, line in enumerate(job.shards):
        split: layout.Split = "val" if number == 0 and has_val else "train"
        known = {layout.job_shard(rules, split, index, number, plain=plain) for plain in (False, True)}
        if (line.split, line.tokens) != (split, sizes[min(number, 1)]) or line.name not in known:
            return False
        if line.segments != ((index, 0),) or not _file_can_be(rules, line):
            return False
    return job.tail.tokens < sizes[min(len(job.shards), 1)]


def _file_can_be(rules: Rules, line: ShardLine) -> bool:
    size = rules.kind.header_bytes + line.tokens * rules.token_bytes
    return line.documents >= 0 and (rules.compress is not None or line.bytes == size)
