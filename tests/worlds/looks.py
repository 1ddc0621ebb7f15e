"""Look at a finished run through every other door: verify, status, loader, trace, show, export, and again."""

import json
import random
import shutil
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader_oracle
import numpy as np
from worlds import checks, history, oracle, recipes
from worlds.layouts import Shard
from worlds.oracle import Run
from worlds.program import Wrong

from fwconvert.errors import UsageError
from fwconvert.loader import Loader

if TYPE_CHECKING:
    from worlds.play import Player

# Compressed shards that are served in any order; of more than these only a sequence is.
MOST_COMPRESSED = 4


def look(player: "Player") -> None:
    """Fail if anything of a finished run is not as it should be."""
    rng = random.Random(f"looks {player.world.seed}")
    run = player.run()
    _prove(player, run)
    _repeat(player)
    for _ in range(3):
        _load(rng, player.out, run)
    if rng.random() < 0.5:
        _trace(rng, player, run)
    if rng.random() < 0.3:
        _show(rng, player, run)
    if player.world.changes is not None:
        _export(rng, player, run)
    if rng.random() < 0.1:
        _plan(player)
    if player.world.kind == "hub" and player.world.keeps_source:
        _kept(player)


def _prove(player: "Player", run: Run) -> None:
    player.must(player.program.run("verify", str(player.out)), {0})
    told = player.must(player.program.run("status", str(player.out), "--json"), {0})
    checks.status(json.loads(told.said), run)


def _repeat(player: "Player") -> None:
    before = checks.state(player.out)
    player.must(player.program.run(*player.words()), {0})
    checks.unchanged(before, checks.state(player.out))


def _plan(player: "Player") -> None:
    """Ask what the run would need: that changes nothing."""
    before = checks.state(player.out)
    words = [word for word in player.words() if word != "--quiet"]
    player.must(player.program.run("plan", *words), {0})
    checks.unchanged(before, checks.state(player.out))


def _kept(player: "Player") -> None:
    """Look for what was to be kept of the fetched sources."""
    kept = player.place.kept
    for job in player.run().jobs:
        place = kept / job.source.path
        if not place.is_file() or place.read_bytes() != job.source.content:
            raise Wrong(f"{place} is not the source that was to be kept")
    for path, content in player.place.mine.items():
        if (kept / path).read_bytes() != content:
            raise Wrong(f"the user's own file {path} was replaced")


# --- the loader --------------------------------------------------------------------------------------------


def _load(rng: random.Random, out: Path, run: Run) -> None:
    """Serve a split in some order, and compare with what must be served."""
    how: dict[str, Any] = {
        "seq_len": rng.choice((1, 2, 3, 7, 16)),
        "batch": rng.choice((1, 2, 5)),
        "split": rng.choice(("train", "train", "val")),
        "order": rng.choice(("sequential", "shuffled", "documents")),
        "seed": rng.choice((0, 1, 12345)),
        "drop_last": rng.choice((None, None, None, True, False)),
        "ranks": rng.choice((1, 1, 2, 3)),
    }
    shards = [shard for shard in run.ordered if shard.split == how["split"]]
    wanted = [_dealt_out(_served(run, shards, how, epoch), how) for epoch in range(rng.choice((1, 2)))]
    refused = run.rules.compress and len(shards) > MOST_COMPRESSED and how["order"] != "sequential"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of shards too short for a window.
        try:
            loaders = [Loader(out, rank=rank, **how) for rank in range(how["ranks"])]
            found = [_taken([[*loader] for loader in loaders], how) for _ in wanted]
        except UsageError as error:
            if refused or not all(wanted):
                return
            raise Wrong(f"the loader refuses {how}: {error}") from error
        if refused:
            raise Wrong(f"the loader takes more compressed shards than it can serve: {how}")
        if found != wanted:
            served = [len(windows) for windows in found], [len(windows) for windows in wanted]
            raise Wrong(f"others are served than should be (so many in each epoch: {served}): {how}")
        # The next epoch may have no window, if documents fill none.
        if how["ranks"] == 1 and _dealt_out(_served(run, shards, how, len(wanted)), how):
            _resume(rng, loaders[0], lambda: Loader(out, **how), how)


def _served(run: Run, shards: list[Shard], how: dict[str, Any], epoch: int) -> list[list[int]]:
    """Return the windows of an epoch in their order, by FORMAT.md."""
    seq_len, seed = how["seq_len"], how["seed"]
    if how["order"] == "documents":
        documents = [document for shard in shards for document in _documents(run, shard)]
        return loader_oracle.packed(loader_oracle.shuffled(documents, seed, epoch), seq_len)
    windows = loader_oracle.windows([run.tokens(shard) for shard in shards], seq_len)
    return windows if how["order"] == "sequential" else loader_oracle.shuffled(windows, seed, epoch)


def _documents(run: Run, shard: Shard) -> list[list[int]]:
    """Return the documents that start in a shard, each to the next, to another source, or to the end."""
    tokens, starts = run.tokens(shard), {start for start, _ in run.starts(shard)}
    borders = sorted(starts | {first for _, first in shard.segments} | {len(tokens)})
    return [tokens[begin:end] for begin, end in pairwise(borders) if begin in starts]


def _dealt_out(windows: list[list[int]], how: dict[str, Any]) -> list[list[int]]:
    """Return what is served of an epoch: a last step that is too short may be left out."""
    span = how["batch"] * how["ranks"]
    least = {None: how["ranks"], True: span, False: 1}[how["drop_last"]]
    left = len(windows) % span
    return windows if left == 0 or left >= least else windows[:-left]


def _taken(served: list[list[Any]], how: dict[str, Any]) -> list[list[int]]:
    """Return the windows that the ranks got, step by step."""
    if len({len(steps) for steps in served}) != 1:
        raise Wrong(f"ranks take {[len(steps) for steps in served]} steps: {how}")
    if how["drop_last"] is not False and any(len(batch) == 0 for steps in served for batch in steps):
        raise Wrong(f"a rank gets an empty batch: {how}")
    batches = [batch for step in zip(*served, strict=True) for batch in step]
    return [window for batch in batches for window in np.asarray(batch).tolist()]


def _resume(rng: random.Random, loader: Loader, fresh: Any, how: dict[str, Any]) -> None:
    """Stop somewhere in an epoch, and go on with another loader."""
    whole, stop = [], rng.randint(1, 5)
    for at, batch in enumerate(loader, start=1):
        whole.append(batch.tolist())
        if at == stop:
            state = loader.state()
    if len(whole) < stop:
        return
    rest = [batch.tolist() for batch in fresh().resume(state)]
    if whole[stop:] != rest:
        raise Wrong(f"a state after {stop} steps is resumed otherwise: {how}")


# --- trace and show ----------------------------------------------------------------------------------------


def _trace(rng: random.Random, player: "Player", run: Run) -> None:
    if not run.shards:
        return
    shard = rng.choice(run.shards)
    offset = rng.randrange(shard.size)
    at = offset
    for stretch in shard.stretches:
        if at < stretch.end - stretch.begin:
            break
        at -= stretch.end - stretch.begin
    source, position = stretch.source, stretch.begin + at
    job = run.jobs[source]
    index = job.stream.document_at(position)
    document = job.stream.documents[index]
    start = run.place(source, document.start)
    assert start is not None, "a document starts before any of its tokens"
    end = min(document.end, job.tokens)
    row = job.source.rows[document.row]
    wanted = {
        "shard": run.name(shard),
        "offset": offset,
        "token": job.stream.tokens[position],
        "source": job.source.path,
        "row": document.row,
        "document": sum(len(one.documents) for one in run.jobs[:source]) + index + 1,
        "starts_in": run.name(start[0]),
        "starts_at": start[1],
        "position": position - document.start,
        "id": row.get("id"),
        "url": row.get("url"),
        "missing": "",
    }
    if end == document.end and run.place(source, end - 1) is not None:  # Not cut, and not dropped.
        wanted["document_tokens"] = end - document.start
    where = [] if player.world.kind == "hub" else ["--source", str(player.place.folder)]
    place = f"{run.name(shard)}:{offset}"
    ended = player.must(player.program.run("trace", str(player.out), place, "--json", *where), {0})
    found = json.loads(ended.said)
    wrong = {name: (found.get(name), value) for name, value in wanted.items() if found.get(name) != value}
    if wrong:
        raise Wrong(f"trace of {place} tells something else (told, true): {wrong}")


def _show(rng: random.Random, player: "Player", run: Run) -> None:
    """Show a document whole, by its number."""
    numbered = [(at, document) for at, job in enumerate(run.jobs) for document in job.documents]
    whole = [
        number
        for number, (at, document) in enumerate(numbered)
        if document.end <= run.jobs[at].tokens and run.place(at, document.end - 1) is not None
    ]
    if not whole:
        return
    number = rng.choice(whole)
    at, document = numbered[number]
    words = ("show", str(player.out), "--document", str(number + 1))
    ended = player.must(player.program.run(*words), {0})
    path, tokens = printable(run.jobs[at].source.path), document.end - document.start
    title = f"row {document.row:,} of {path}, {tokens:,} tokens"
    names = {number: name for name, number in recipes.SPECIALS["cl100k_base"][0].items()}
    names[100256] = "<|100256|>"
    before, after = ("".join(names.get(one, "<|endoftext|>") for one in some)
                     for some in (run.rules.before, run.rules.after))  # fmt: skip
    text = before + printable(document.text) + after
    if title not in ended.said or not ended.said.endswith(f"\n{text}\n"):
        raise Wrong(f"document {number + 1} is {title}: {document.text!r}, and shown as\n{ended.said}")


def printable(text: str) -> str:
    """Return a text as it may be shown on a terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def _shape(rules: recipes.Rules) -> tuple[int, int]:
    return len(rules.before), len(rules.after)


def _ends_elsewhere(run: Run, rules: recipes.Rules) -> bool:
    """Tell whether the limit of tokens would end the run elsewhere, with another number of separators."""
    more = sum(_shape(rules)) - sum(_shape(run.rules))
    tokens = sum(job.tokens for job in run.jobs)
    other = tokens + more * sum(len(job.documents) for job in run.jobs)
    limit = run.rules.limit_tokens
    return more != 0 and limit is not None and max(tokens, other) >= limit


# --- export ------------------------------------------------------------------------------------------------


def _export(rng: random.Random, player: "Player", run: Run) -> None:
    """Export, perhaps with a kill on the way, and compare with a direct conversion."""
    changes = player.world.changes
    assert changes is not None
    new = player.out.parent / "NEW"
    rules = recipes.exported(run.rules, changes)
    words = ["export", str(player.out), *changes.words(), "-o", str(new), "--workers", rng.choice("12")]
    before = checks.state(player.out)
    cut = any(job.cut for job in run.jobs)
    if run.dropped or (cut and _shape(rules) != _shape(run.rules)) or _ends_elsewhere(run, rules):
        player.must(player.program.run(*words), {2})
        if new.exists():
            raise Wrong(f"an export was refused, and yet there is {checks.some(new.rglob('*'))}")
        return
    if rng.random() < 0.3:
        step = replace(history.some_interrupt(rng), action="kill")
        player.must(player.program.interrupted(new, step, *words), {0, -9})
    player.must(player.program.run(*words), {0})
    checks.complete(new, oracle.convert(run.sources, rules, **player.place.identity))
    checks.unchanged(before, checks.state(player.out))
    shutil.rmtree(new)
