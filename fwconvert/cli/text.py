"""Results of the commands as text for people."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fwconvert import records
from fwconvert.errors import message, printable
from fwconvert.recipes import Recipe, Rules
from fwconvert.store import layout

if TYPE_CHECKING:
    from fwconvert.inspection.show import Document
    from fwconvert.inspection.status import Status
    from fwconvert.inspection.verify import Report
    from fwconvert.run.convert import Result
    from fwconvert.run.estimate import Needs
    from fwconvert.run.preflight import Estimate
    from fwconvert.store.run_manifest import Headline


def json_text(value: object) -> str:
    """Return a record as one line of JSON."""
    try:
        return records.encode(value).decode()
    except UnicodeEncodeError:  # A path that is not UTF-8 can still be escaped in JSON.
        return json.dumps(records.as_builtin(value), separators=(",", ":"))


def outcome(result: "Result", recipe: Recipe) -> str:
    """Describe how a run ended, and what to do next."""
    head = result.headline
    rows = {"folder": result.out, "tokens": f"{head.tokens:,} of {head.documents:,} documents"}
    rows["shards"] = f"{head.train_shards:,} for training, {head.val_shards} for validation"
    rows |= _skipped(head)
    if head.dropped_tokens:
        rows["dropped"] = f"{head.dropped_tokens:,} tokens after the last full shard (--last drop)"
    if result.session_tokens:
        rate = result.session_tokens / max(result.seconds, 1e-9)
        rows["time"] = f"{result.seconds:,.1f} s, {rate:,.0f} tokens/s"
    return message(_how_it_went(result, recipe), *_advice(result, recipe), **rows)


def _skipped(counts: "Headline | Status") -> dict[str, str]:
    """Return the row about source rows that are not documents, if there are any."""
    parts = [f"{counts.null_rows:,} null rows", f"{counts.empty_rows:,} empty rows"]
    if counts.filtered_rows:
        parts.append(f"{counts.filtered_rows:,} rows rejected by the filter")
    any_skipped = counts.null_rows or counts.empty_rows or counts.filtered_rows
    return {"skipped": ", ".join(parts)} if any_skipped else {}


def _how_it_went(result: "Result", recipe: Recipe) -> str:
    jobs, done = result.headline.jobs, result.headline.jobs_done
    if result.untouched:
        return "already complete; nothing was changed"
    sources = len(recipe.source.files) or recipe.source.totals.files
    if result.complete and jobs < sources:
        return f"done: the limit was reached after {jobs} of {sources} sources"
    if result.complete:
        return f"done: all {jobs} sources are converted"
    reason = "stopped" if result.stopped else "incomplete"
    return f"{reason}: {done} of {jobs} sources are converted, {len(result.failed)} failed"


def _advice(result: "Result", recipe: Recipe) -> list[str]:
    if not result.complete:
        blocked = result.failed and recipe.rules.is_limited
        why = ["the limit counts from the first source on, so sources after a failed one cannot be finished"]
        return [*(why if blocked else []), "run the same command again: it continues where it stopped"]
    if not result.headline.documents:
        return ["there are no documents: check the skipped rows, and the filter if there is one"]
    head, rules = result.headline, recipe.rules
    traps = rules.shard_format.warnings(rules.token_bytes, head.train_shards)
    return [*_about_splits(result, rules), *traps]


def foreign_text(foreign: Sequence[str]) -> str:
    """Describe the files that a trainer would read but that this run did not make."""
    some = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else "")
    wrong = "the folder contains files that are not part of this run but would be read by a trainer"
    return message(wrong, "move them out of the folder, then run the same command again", files=some)


def _about_splits(result: "Result", rules: Rules) -> list[str]:
    head = result.headline
    if rules.val_tokens and not head.val_shards:
        kept = [] if head.dropped_tokens else ["everything is kept as training data"]
        return [_why_no_validation(result, rules), *kept, _how_to_get_validation(head, rules)]
    if not head.train_shards:
        return ["there is no training shard: check --val-tokens, which is filled first, and --last"]
    return []


def _why_no_validation(result: "Result", rules: Rules) -> str:
    from fwconvert.store import run_manifest  # noqa: PLC0415
    from fwconvert.store.local import open_store  # noqa: PLC0415

    none, wanted = "there is no validation shard", f"fewer than --val-tokens ({rules.val_tokens:,})"
    if rules.layout == "contiguous":
        return f"{none}: the run has {result.headline.tokens:,} tokens, {wanted}"
    first = run_manifest.read(open_store(result.out)).jobs[0]
    return f"{none}: it comes from the first source, and {first.path} has {first.tokens:,} tokens, {wanted}"


def _how_to_get_validation(head: "Headline", rules: Rules) -> str:
    again = "convert again into another folder" if head.dropped_tokens else "export the run"
    enough = rules.layout == "independent" and head.tokens >= rules.val_tokens
    whole = ", or with --layout contiguous, which takes it from all sources" if enough else ""
    return f"to get one, {again} with a smaller --val-tokens{whole}"


def what_next(result: "Result") -> str:
    """Suggest what to look at after the demo."""
    from fwconvert.inspection import show  # noqa: PLC0415
    from fwconvert.store import run_manifest  # noqa: PLC0415
    from fwconvert.store.local import open_store  # noqa: PLC0415

    manifest = run_manifest.read(open_store(result.out))
    line = next((line for line in manifest.shards if line.split == "train"), None)
    if line is None:  # Less than one shard, and dropped.
        return ""
    _, found = show.documents(result.out, line.name, 1)
    first = printable(found[0].text.strip().splitlines()[0])
    out = _short(result.out)
    lines = ["", f"The first line in {line.name}:", f"  {first[:200]}", ""]
    lines += _how_to_read(manifest.rules, out, line.name)
    lines += ["", "Try next:", f"  fwconvert verify {out}", f"  fwconvert show {out} {line.name}"]
    return "\n".join([*lines, "  fwconvert plan --version 10B"])


def _how_to_read(rules: Rules, out: Path, shard: str) -> list[str]:
    if rules.compress:
        loading = f'  for windows in Loader("{out}", seq_len=1024, batch=8, order="sequential"): ...'
        return ["Read it:", "  from fwconvert.loader import Loader", loading]
    kind = rules.shard_format
    start, where = f"{kind.index_start},<u4", f'"{out}/{shard}", np.{rules.token_type}, "r"'
    return [
        "Read a token shard:",
        "  import numpy as np",
        f"  tokens = np.memmap({where}, offset={kind.header_bytes})",
        f'  starts = np.fromfile("{out}/{layout.index(shard)}", "{start}")["f0"]',
    ]


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def plan_text(shown: "Estimate", recipe: Recipe) -> str:
    """Describe what a run would need."""
    needed = shown.plan
    largest = f"{needed.largest_path}: {needed.largest_bytes:,} bytes, about {needed.largest_tokens:,} tokens"
    short = shown.disk_needed - shown.disk_used_already - shown.disk_free
    rows: dict[str, object] = {
        "source": " ".join(filter(None, (shown.dataset, shown.revision, recipe.source.folder))),
        "files": f"{needed.files:,}",
        "bytes": f"{needed.source_bytes:,}",
        "tokens": f"about {needed.tokens:,} ({recipe.rules.tokenizer})",
        "format": f"{recipe.rules.format}, the separator {recipe.rules.eot} each document",
        "token_shards": _shards_text(needed, recipe),
        "output": f"about {needed.output_bytes:,} bytes in {shown.out}",
        "to_fetch": _to_fetch(needed) if needed.fetched_bytes else "nothing: the files are local",
        "disk_needed": f"about {shown.disk_needed:,} bytes, {shown.disk_used_already:,} of them already used",
        "disk_free": f"{shown.disk_free:,} bytes" + (f" ({short:,} too few)" if short > 0 else ""),
        "largest_job": largest,
    }
    if recipe.rules.is_filtered:
        rows["filter"] = "how much it keeps is unknown before the run, so these are upper bounds"
    warnings = recipe.rules.shard_format.warnings(recipe.rules.token_bytes)
    return message("this is what the run needs", *warnings, **rows)


def _shards_text(needed: "Needs", recipe: Recipe) -> str:
    size = recipe.rules.shard_tokens
    return f"about {needed.shards:,} of {size:,} tokens" if size else "one, and one for validation"


def _to_fetch(needed: "Needs") -> str:
    most = needed.fetched_bytes
    if most >= needed.source_bytes:
        return f"{needed.source_bytes:,} bytes, all of them kept on disk"
    return f"{needed.source_bytes:,} bytes, at most {most:,} of them on disk at a time"


def status_text(found: "Status") -> str:
    """Describe how far a run is."""
    share = found.source_bytes_done / max(1, found.source_bytes)
    state = "complete" if found.complete else "incomplete"
    rows: dict[str, object] = {
        "format": found.format,
        "jobs": f"{found.jobs_done:,} of {found.jobs:,} done ({share:.0%} of the bytes)",
        "tokens": f"{found.tokens:,} of {found.documents:,} documents",
        "shards": f"{found.shards:,}",
        "at_work": found.at_work or "no session",
    }
    rows |= _skipped(found)
    advice = []
    if found.missing_shards:
        rows["missing"] = (
            f"{len(found.missing_shards):,} token shards, starting with {found.missing_shards[0]}"
        )
        advice = ["run the command that made this run again: it remakes what is missing"]
    failures = [f"  failed  {job.path} ({job.attempts} attempts): {job.reason}" for job in found.failed]
    failures = [printable(line) for line in failures]
    return "\n".join([message(f"{found.folder}: {state}", *advice, **rows), *failures])


def verify_text(report: "Report", out: Path) -> str:
    """Describe what verify found."""
    problems = [printable(f"  {problem.file}: {problem.what}") for problem in report.problems]
    verdict = "no problems" if report.ok else f"{len(report.problems):,} problems"
    rows = {"files": f"{report.files:,}", "bytes": f"{report.bytes:,}", "tokens": f"{report.tokens:,}"}
    rows["documents"] = f"{report.documents:,}"
    if not report.ok:
        problems.append("  -> to repair it, run the command that made it again, with --rehash")
    return "\n".join([message(f"{out}: {verdict}", **rows), *problems])


def document_text(document: "Document", number: str) -> str:
    """Return one document under a title line."""
    if document.row is None:
        title = f"--- the middle of a document of {document.source}, {document.tokens:,} tokens"
    else:
        cut = "" if document.whole else " (it may not end here)"
        where = f"row {document.row:,} of {document.source}"
        title = f"--- document {number}: {where}, {document.tokens:,} tokens{cut}"
    return f"\n{title}\n{printable(document.text)}"
