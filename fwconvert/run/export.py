"""Make a run of another layout, size, side of the separator, name or format from a finished run.

The same pipeline with other documents: a job for each source, whose tokens come
from the token shards of the finished run instead of parquet and an encoder. So
receipts, tails, join, retries and resume are those of a conversion, and so are
the bytes: an export is what a conversion of the same recipe gives.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, get_type_hints

import msgspec

from fwconvert import formats, records
from fwconvert.errors import ManifestError, UsageError, message
from fwconvert.formats import Format, FormatName
from fwconvert.inspection import verify_manifest
from fwconvert.inspection.reader import RunReader
from fwconvert.job.orders import ConvertOrder, Exported
from fwconvert.options import Options
from fwconvert.recipes import EotSide, Last, Layout, Recipe, SourceShard, block_digits, check_rules
from fwconvert.run import estimate, request
from fwconvert.run.convert import Result, environment, make
from fwconvert.run.engines import Engine
from fwconvert.run.prefetch import Origin, Ready, Wanted
from fwconvert.run.state import Observer, StopSwitch
from fwconvert.sources.catalog import Size
from fwconvert.store import places, sessions
from fwconvert.store.folder import RunFolder
from fwconvert.store.receipts import Counts, Receipt
from fwconvert.tokens import registry


class Changes(TypedDict, total=False):
    """What is to differ from the run that is exported. None: nothing."""

    format: FormatName | None
    eot: EotSide | None
    shard_tokens: int | None
    val_tokens: int | None
    layout: Layout | None
    last: Last | None
    compress: request.Compression | None
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

    Changes are format, eot, shard_tokens, val_tokens, layout, last, compress and
    name. Nothing is tokenised again. Returns and raises as `convert` does, and
    goes on like it after a crash.
    """
    return Export(Path(run), changes).carry_out(
        out, options or Options(), engine=engine, observer=observer, stop=stop
    )


class Export:
    """A finished run, and the recipe of what is to be made from it."""

    def __init__(self, run: Path, changes: Changes) -> None:
        self._run = RunReader(run.absolute())
        _refuse_unfinished(self._run)
        self.recipe = changed_recipe(self._run.manifest.recipe(), changes)
        _refuse_to_turn_a_cut(self._run, self.recipe.rules.eot)

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
        folder = RunFolder(Path(out).absolute())
        _refuse_inside(folder.path, self._run.folder.path)
        given = environment(options, engine, observer, stop)
        return make(self.recipe, folder, _FinishedRun(self._run, self.recipe, given.options), given)


def changed_recipe(recipe: Recipe, changes: Changes) -> Recipe:
    """Return the recipe with other rules, as if somebody had asked for it by name."""
    records.check_values(changes, get_type_hints(Changes))
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    old, files = recipe.rules, recipe.source.files
    given = _of_format(recipe, formats.find(given.get("format", old.format))) | given
    # The zstd of today, not that of the old run: a recipe says which one made its bytes.
    given["compress"] = request.compression(given.get("compress", "zstd" if old.compress else "none"))
    tokens = given.get("shard_tokens", old.shard_tokens)
    if tokens and 0 < old.val_tokens == old.shard_tokens:  # One shard for validation stays one shard.
        given.setdefault("val_tokens", tokens)
    new = msgspec.structs.replace(old, **given)
    digits = block_digits(files, max(1, new.block_tokens))
    return Recipe(recipe.source, check_rules(msgspec.structs.replace(new, block_digits=digits)))


def _of_format(recipe: Recipe, kind: Format) -> dict[str, Any]:
    """Return what another format has other than the old one, unless told."""
    old = recipe.rules.kind
    if kind is old:
        return {}
    rules: dict[str, Any] = {"eot": kind.eot} | ({} if kind.zips else {"compress": "none"})
    if kind.is_one_stream == old.is_one_stream:
        return rules
    return rules | request.shape(kind, demo=recipe.source.dataset == "demo")


def _refuse_unfinished(run: RunReader) -> None:
    manifest, account = run.manifest, run.account
    if not manifest.headline.complete:
        missing = [file.path for at, file in enumerate(manifest.sources) if at not in account.jobs]
        waits = f"{len(missing):,} sources, the first is {missing[0]}" if missing else "the join of the tails"
        raise UsageError(
            message(
                "only a finished run can be exported",
                "run the command that makes it again, to its end",
                folder=run.folder.path,
                converted=f"{len(account.jobs):,} of {len(manifest.sources):,} sources",
                missing=waits,
            )
        )
    problem = next(verify_manifest.problems(account), None)
    if problem is not None:
        raise ManifestError(
            message(
                "the run manifest contradicts itself, so the run cannot be exported",
                f"see what is wrong: fwconvert verify {run.folder.path}",
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
                folder=run.folder.path,
                dropped=f"{sum(passage.tokens for passage in lost):,} tokens",
            )
        )


def _refuse_to_turn_a_cut(run: RunReader, eot: EotSide) -> None:
    """Raise UsageError if the last document lacks the token that the other side would have room for."""
    if eot != run.manifest.rules.eot and any(job.cut for job in run.manifest.jobs):
        raise UsageError(
            message(
                "the last document of this run is cut (--limit-tokens): separators cannot change sides",
                f"give --eot {run.manifest.rules.eot}, or convert the sources again",
                folder=run.folder.path,
            )
        )


def _refuse_inside(out: Path, run: Path) -> None:
    if out.resolve().is_relative_to(run.resolve()):
        raise UsageError(
            message(
                "the export cannot be made inside the run that it comes from",
                "choose another --out",
                run=run,
                out=out,
            )
        )


class _FinishedRun:
    """The token shards of a finished run, in place of the sources."""

    def __init__(self, run: RunReader, recipe: Recipe, options: Options) -> None:
        self._run = run
        self._recipe = recipe
        self._options = options
        self.place = places.read(run.folder)

    def origin(self, folder: RunFolder) -> "_RunOrigin":
        """Return what hands out the orders."""
        assert folder.path != self._run.folder.path  # noqa: S101  # refused before, by carry_out
        return _RunOrigin(self._run)

    def check_disk(self, folder: RunFolder) -> None:
        """Raise UsageError if the output does not fit. Its size is known."""
        jobs = self._run.manifest.jobs
        sizes = {job.path: Size(job.documents, job.text_bytes) for job in jobs}
        tokens = {job.path: job.tokens for job in jobs}
        workers = max(1, min(self._options.worker_count, len(jobs)))
        needed = estimate.make_plan(self._without_a_limit(), sizes, workers, counted=tokens)
        estimate.check_shards(needed, self._recipe.rules)
        there, free = estimate.bytes_there(folder), estimate.free_bytes(folder.path)
        estimate.refuse_small_disk(needed, there, free, str(folder.path))

    def _without_a_limit(self) -> Recipe:
        """Return the recipe of all that the run has: its limit took what is behind it, and was counted."""
        recipe, jobs = self._recipe, {job.path for job in self._run.manifest.jobs}
        files = tuple(file for file in recipe.source.files if file.path in jobs)
        return Recipe(
            msgspec.structs.replace(recipe.source, files=files),
            msgspec.structs.replace(recipe.rules, limit_documents=None, limit_tokens=None),
        )

    def check_columns(self, folder: RunFolder, origin: Origin, stop: threading.Event) -> None:
        """Ask for no column: all were there when the run was made."""

    def session(self, folder: RunFolder, observer: Observer) -> sessions.Session:
        """Return a session that can begin; it encodes nothing."""
        observer.notice(f"taking the tokens from {self._run.folder.path}")
        # For whoever decodes the output.
        spec = registry.of_rules(self._recipe.rules)
        registry.kind_of(spec).copy(spec, self._run.folder.vocabularies, folder.vocabularies)
        return sessions.new(self._options.worker_count, 1, "exported")


class _RunOrigin:
    """Hands out orders whose tokens come from a finished run."""

    def __init__(self, run: RunReader) -> None:
        self._run = run
        self._jobs = {job.path: job for job in run.manifest.jobs}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def place(self, source: SourceShard) -> Path:
        """Return the folder of the run: no source is needed itself."""
        return self._run.folder.path / source.path

    def changed(self, source: SourceShard, receipt: Receipt) -> str | None:
        """Return the sha256 of the source that the run has, if it is another.

        A source behind the limit was not read for the run. A conversion that was
        cut off may have left its receipt, on trial; it is withdrawn.
        """
        job = self._jobs.get(source.path)
        return None if job is None or job.sha256 == receipt.source_sha256 else job.sha256

    def ready(self, orders: Sequence[ConvertOrder], is_wanted: Wanted | None = None) -> Ready:  # noqa: ARG002
        """Yield all orders, each with where its tokens stand; a source behind a limit has none."""
        for order in orders:
            if order.source.path in self._jobs:
                yield replace(order, exported=self._exported(order))

    def clear(self) -> None:
        """Leave the run as it is."""

    def release(self, source: SourceShard) -> None:
        """Leave the run as it is."""

    def traffic(self) -> None:
        """Tell that nothing is fetched."""

    def notices(self) -> list[str]:
        """Return nothing: there is nothing to tell."""
        return []

    def _exported(self, order: ConvertOrder) -> Exported:
        job = self._jobs[order.source.path]
        return Exported(
            run=str(self._run.folder.path),
            rules=self._run.manifest.rules,
            passages=self._run.streams[order.source_index],
            bytes=job.bytes,
            sha256=job.sha256,
            counts=Counts(**{name: getattr(job, name) for name in Counts.__struct_fields__}),
        )
