"""Make a run of another layout, size, side of the separator, name or format from a finished run.

The same pipeline with other documents: a job for each source, whose tokens come
from the token shards of the finished run instead of parquet and an encoder. So
receipts, tails, join, retries and resume are those of a conversion, and so are
the bytes: an export is what a conversion of the same recipe gives.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_type_hints

import msgspec

from fwconvert import formats, records
from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.formats import Format, FormatName
from fwconvert.hub.retry import Retry
from fwconvert.inspection import verify_manifest
from fwconvert.inspection.reader import RunReader
from fwconvert.job.orders import ConvertOrder, Exported, Ready
from fwconvert.options import Options
from fwconvert.processes import CallApart
from fwconvert.recipes import EotSide, Last, Layout, Recipe, Rules, SourceShard, block_digits, check_rules
from fwconvert.run import request
from fwconvert.run.convert import Conversion, Result, environment
from fwconvert.run.engines import Engine
from fwconvert.run.estimate import Needs, Sample, estimate_needs
from fwconvert.run.events import Observer, StopSwitch
from fwconvert.run.inputs import Input, IsWanted, always
from fwconvert.sources.catalog import Size
from fwconvert.store import layout, saved_recipe, sessions
from fwconvert.store.base import Store
from fwconvert.store.local import absolute, open_store
from fwconvert.store.receipts import Counts, Receipt
from fwconvert.tokens import registry
from fwconvert.tokens.given import Kept


class Changes(TypedDict, total=False):
    """What is to differ from the run that is exported. None: nothing."""

    format: FormatName | None
    eot_token: str | int | None
    bos_token: str | int | None
    eot: EotSide | None
    shard_tokens: int | None
    val_tokens: int | None
    layout: Layout | None
    last: Last | None
    compress: request.Compression | None
    sequence_length: int | None
    name: str | None


def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    engine: Engine | None = None,
    observer: Observer | None = None,
    stop: StopSwitch | None = None,
    **changes: Unpack[Changes],
) -> Result:
    """Make in `out` the run that a conversion with these changes would give, from the finished run in `run`.

    Changes are format, eot_token, bos_token, eot, shard_tokens, val_tokens, layout, last,
    compress, sequence_length and name. Nothing is tokenised again. Returns and raises as `convert` does, and
    goes on like it after a crash.
    """
    return Export(run, changes).carry_out(
        out, options or Options(), engine=engine, observer=observer, stop=stop
    )


class Export:
    """A finished run, and the recipe of what is to be made from it."""

    def __init__(self, run: str | os.PathLike[str], changes: Changes) -> None:
        self._run = RunReader(absolute(run))
        _refuse_unfinished(self._run)
        recipe, folder = self._run.manifest.recipe(), self._run.store.pull
        self.recipe = changed_recipe(
            recipe, changes, lambda: registry.kept(recipe.rules, folder(layout.VOCABULARIES))
        )
        _refuse_another_limit(self._run, self.recipe.rules)

    def carry_out(
        self,
        out: str | os.PathLike[str],
        options: Options,
        *,
        engine: Engine | None = None,
        observer: Observer | None = None,
        stop: StopSwitch | None = None,
    ) -> Result:
        """Make it, or go on where an earlier call stopped."""
        store = open_store(absolute(out), scratch=options.scratch_folder)
        _refuse_inside(store, self._run.store)
        given = environment(options, engine, observer, stop)
        return Conversion(store, self.recipe, FinishedRun(self._run), given).run()


def changed_recipe(
    recipe: Recipe, changes: Changes, kept: Callable[[], Kept | None] = lambda: None
) -> Recipe:
    """Return the recipe with other rules, as if somebody had asked for it by name.

    `kept` returns the tokenizer of the run, if it is not built in.
    """
    records.check_values(changes, get_type_hints(Changes))
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    old, files = recipe.rules, recipe.source.files
    kind = formats.find(given.get("format", old.format))
    given = _of_format(recipe, kind) | _of_separators(old, kind, given, kept) | given
    # The zstd of today, not that of the old run: a recipe says which one made its bytes.
    given["compress"] = request.compression(given.get("compress", "zstd" if old.compress else "none"))
    length = old.sequence_length if kind.has_windows else None
    given |= request.windows(kind, given.get("sequence_length", length))
    tokens = given.get("shard_tokens", old.shard_tokens)
    if tokens and 0 < old.val_tokens == old.shard_tokens:  # One shard for validation stays one shard.
        given.setdefault("val_tokens", tokens)
    new = msgspec.structs.replace(old, **{name: given[name] for name in given if name not in _TYPED})
    digits = block_digits(files, max(1, new.block_tokens))
    return Recipe(recipe.source, check_rules(msgspec.structs.replace(new, block_digits=digits)))


def _of_format(recipe: Recipe, kind: Format) -> dict[str, Any]:
    """Return what another format has other than the old one, unless told."""
    old = recipe.rules.shard_format
    if kind is old:
        return {}
    # Two separators have their sides in every format.
    side = {"eot": kind.eot} if recipe.rules.bos_id is None else {}
    rules: dict[str, Any] = side | ({} if kind.zips else {"compress": "none"})
    if kind.is_one_stream == old.is_one_stream:
        return rules
    return rules | request.shape(kind, demo=recipe.source.dataset == "demo")


# What is given as the user typed it, and stands in the rules as ids.
_TYPED = ("eot_token", "bos_token")


def _of_separators(
    old: Rules, kind: Format, given: Mapping[str, Any], kept: Callable[[], Kept | None]
) -> dict[str, Any]:
    """Return what other separators than the old ones decide."""
    ends, begins = (given.get(name) for name in _TYPED)
    if ends is None and begins is None:
        if old.bos_id is None or given.get("eot") is None:
            return {}
        raise UsageError(
            message(
                "--eot says where one separator is, and this run has two",
                f"to keep one, pass --bos-token {old.bos_id} (before each document) "
                f"or --eot-token {old.eot_id} with --eot",
                bos_token=old.bos_id,
                eot_token=old.eot_id,
            )
        )
    spec, side = request.separated(registry.of_rules(old), given.get("eot"), ends, begins, kept)
    if side is None:
        is_same_shape = kind is old.shard_format and old.bos_id is None
        side = old.eot if is_same_shape else kind.eot
    return {**registry.UNSEPARATED, **registry.as_rules(spec), "eot": side}


def _refuse_unfinished(run: RunReader) -> None:
    manifest, account = run.manifest, run.account
    if not manifest.headline.complete:
        missing = [file.path for at, file in enumerate(manifest.sources) if at not in account.jobs]
        waits = f"{len(missing):,} sources, the first is {missing[0]}" if missing else "the join of the tails"
        raise UsageError(
            message(
                "only a finished run can be exported",
                "run the command that makes it again, to its end",
                folder=run.store.uri,
                converted=f"{len(account.jobs):,} of {len(manifest.sources):,} sources",
                missing=waits,
            )
        )
    problem = next(verify_manifest.problems(account), None)
    if problem is not None:
        raise ManifestError(
            message(
                "the run manifest contradicts itself, so the run cannot be exported",
                f"see what is wrong: fwconvert verify {run.store.uri}",
                file=problem.file,
                problem=problem.what,
            )
        )
    lost = [p for passages in run.streams for p in passages if not p.shard.sha256]
    if lost:
        raise UsageError(
            message(
                "this run has dropped tokens that filled no last shard, so it cannot be exported",
                "export a run that was made with --last merge or --last keep",
                folder=run.store.uri,
                dropped=f"{sum(passage.tokens for passage in lost):,} tokens",
            )
        )


def _refuse_another_limit(run: RunReader, wanted: Rules) -> None:
    """Raise UsageError if the limit would end the run elsewhere, where the run may have no tokens to take."""
    manifest, rules = run.manifest, run.manifest.rules
    old, new = registry.separators_of(rules), registry.separators_of(wanted)
    moved = [(old.before is None) != (new.before is None), (old.after is None) != (new.after is None)]
    if any(moved) and any(job.cut for job in manifest.jobs):
        keep = "keep its separators" if rules.bos_id is not None else f"give --eot {rules.eot}"
        raise UsageError(
            message(
                "the last document of this run is cut (--limit-tokens): separators cannot change sides",
                f"{keep}, or convert the sources again",
                folder=run.store.uri,
            )
        )
    had = sum(job.tokens for job in manifest.jobs)
    have = had + sum(job.documents for job in manifest.jobs) * (new.each - old.each)
    if rules.limit_tokens is not None and old.each != new.each and max(had, have) >= rules.limit_tokens:
        raise UsageError(
            message(
                "with as many separators --limit-tokens would end this run at another document",
                "keep as many as it has, or convert the sources again",
                folder=run.store.uri,
                limit_tokens=f"{rules.limit_tokens:,}",
                tokens=f"{had:,}, and {have:,} with {new.each} for each document",
            )
        )


def _refuse_inside(out: Store, run: Store) -> None:
    if out.is_remote or run.is_remote:
        is_inside = f"{out.uri}/".startswith(f"{run.uri}/")
    else:
        is_inside = Path(out.uri).resolve().is_relative_to(Path(run.uri).resolve())
    if is_inside:
        raise UsageError(
            message(
                "the export cannot be made inside the run that it comes from",
                "choose another --out",
                run=run.uri,
                out=out.uri,
            )
        )


class FinishedRun(Input):
    """The token shards of a finished run, in place of the sources."""

    def __init__(self, run: RunReader) -> None:
        self.root = saved_recipe.read_source_root(run.store)
        self._run = run
        self._jobs = {job.path: job for job in run.manifest.jobs}

    def location(self, source: SourceShard) -> Path:
        """Return a place in the folder of the run: no source is needed itself."""
        return self._run.store.local("") / source.path

    def changed(self, source: SourceShard, receipt: Receipt) -> str | None:
        """Return the sha256 of the source that the run was made from, if it is another one.

        A source beyond the limit was not read for the run. A conversion that was
        cut off may have left its receipt, made ahead; it is withdrawn.
        """
        job = self._jobs.get(source.path)
        return None if job is None or job.sha256 == receipt.source_sha256 else job.sha256

    def sizes(self) -> Mapping[str, Size]:
        """Return what was counted when the run was made."""
        return {path: Size(job.documents, job.text_bytes) for path, job in self._jobs.items()}

    def estimate(self, recipe: Recipe, options: Options, sample: Sample | None = None) -> Needs:  # noqa: ARG002
        """Return what an export will need: exact, since the tokens were counted.

        The recipe is taken without its limit, and without the sources beyond it.
        """
        files = tuple(file for file in recipe.source.files if file.path in self._jobs)
        unlimited = Recipe(
            msgspec.structs.replace(recipe.source, files=files),
            msgspec.structs.replace(recipe.rules, limit_documents=None, limit_tokens=None),
        )
        more = recipe.rules.separators_each - self._run.manifest.rules.separators_each
        tokens = {path: job.tokens + more * job.documents for path, job in self._jobs.items()}
        workers = max(1, min(options.worker_count, len(files)))
        return estimate_needs(unlimited, self.sizes(), workers, counted=tokens)

    def open_footer(self, source: SourceShard, retry: Retry) -> None:  # noqa: ARG002
        """Ask for no column: all were there when the run was made."""
        return

    def choose_encoder(
        self,
        store: Store,  # noqa: ARG002
        recipe: Recipe,  # noqa: ARG002
        options: Options,  # noqa: ARG002
        apart: CallApart,  # noqa: ARG002
    ) -> tuple[str, str]:
        """Need none: nothing is encoded."""
        return "exported", ""

    def new_session(
        self, store: Store, recipe: Recipe, options: Options, observer: Observer, encoder: str
    ) -> sessions.Session:
        """Return a session that encodes nothing; the run's vocabulary is copied for those who decode."""
        observer.notice(f"taking the tokens from {self._run.store.uri}")
        spec = registry.of_rules(recipe.rules)
        there, here = self._run.store.pull(layout.VOCABULARIES), store.local(layout.VOCABULARIES)
        registry.kind_of(spec).copy(spec, there, here)
        store.push(layout.VOCABULARIES)
        return sessions.new(options.worker_count, 1, encoder)

    def seen_by_workers(self) -> Path | str:
        """Return the run manifest, or the address of the run: where that is, the token shards are."""
        store = self._run.store
        return store.uri if store.is_remote else store.local(layout.MANIFEST)

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: IsWanted = always) -> Ready:  # noqa: ARG002
        """Yield all orders, each with where its tokens are; a source beyond a limit has none."""
        for order in orders:
            job = self._jobs.get(order.source.path)
            if job is not None:
                exported = Exported(
                    run=self._run.store.uri,
                    rules=self._run.manifest.rules,
                    passages=self._run.streams[order.source_index],
                    bytes=job.bytes,
                    sha256=job.sha256,
                    counts=Counts(**{name: getattr(job, name) for name in Counts.__struct_fields__}),
                )
                yield replace(order, exported=exported)
