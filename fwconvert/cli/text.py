"""Results of the commands as text for people."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fwconvert import records, trainers
from fwconvert.cli.console import program
from fwconvert.cli.screen import duration, humanised, megabytes, percent
from fwconvert.errors import message, printable
from fwconvert.recipes import Recipe, Rules, SourceManifest
from fwconvert.store import layout, pulses

# Of a thousand ranks at work not all are shown.
_MOST_RANKS = 20
# What was said longer ago is said to be old.
_OLD_SECONDS = 10.0

if TYPE_CHECKING:
    from fwconvert.inspection.show import Document
    from fwconvert.inspection.status import FailedJob, Status
    from fwconvert.inspection.verify import Report
    from fwconvert.run.convert import Result
    from fwconvert.run.copying import Copied
    from fwconvert.run.events import Faults
    from fwconvert.store.pulses import Pulse
    from fwconvert.store.receipts import Quarantined
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
    if result.output_bytes:
        rows["size"] = f"{result.output_bytes:,} bytes"
    if result.jobs_found and not result.untouched:
        rows["resumed"] = f"{result.jobs_found:,} of {head.jobs:,} sources were done before"
    if result.session_tokens:
        rate = result.session_tokens / max(result.seconds, 1e-9)
        rows["time"] = f"{_seconds(result.seconds)}, {rate:,.0f} tokens/s"
    if faults := _faults(result.faults):
        rows["healed" if result.complete else "faults"] = faults
    return message(_how_it_went(result, recipe), *_advice(result, recipe), **rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 60 else duration(seconds)


def _faults(met: "Faults") -> str:
    """Say what went wrong and was tried again; "" if nothing did."""
    return ", ".join(
        one if number == 1 else many.format(f"{number:,}")
        for number, one, many in (
            (met.refusals, "1 answer 429 or 5xx", "{} answers 429 or 5xx"),
            (met.broken, "1 broken connection", "{} broken connections"),
            (met.corrupt, "1 file with corrupt bytes", "{} files with corrupt bytes"),
            (met.workers, "1 lost worker", "{} lost workers"),
            (met.attempts, "1 failed attempt", "{} failed attempts"),
        )
        if number
    )


def end_facts(result: "Result", code: int) -> dict[str, object]:
    """Return what programs are told at the end of a run."""
    head = result.headline
    return {
        "exit_code": code,
        "complete": result.complete,
        "stopped": result.stopped,
        "out": str(result.out),
        "rank": result.rank,
        "jobs": head.jobs,
        "jobs_done": head.jobs_done,
        "jobs_found": result.jobs_found,
        "failed": [failed.path for failed in result.failed],
        "missing": len(result.missing),
        "documents": head.documents,
        "tokens": head.tokens,
        "session_tokens": result.session_tokens,
        "train_shards": head.train_shards,
        "val_shards": head.val_shards,
        "output_bytes": result.output_bytes,
        "seconds": round(result.seconds, 3),
        "faults": vars(result.faults),
    }


def _skipped(counts: "Headline | Status") -> dict[str, str]:
    """Return the row about source rows that are not documents, if there are any."""
    parts = [f"{counts.null_rows:,} null rows", f"{counts.empty_rows:,} empty rows"]
    if counts.filtered_rows:
        parts.append(f"{counts.filtered_rows:,} rows rejected by the filter")
    any_skipped = counts.null_rows or counts.empty_rows or counts.filtered_rows
    return {"skipped": ", ".join(parts)} if any_skipped else {}


def _how_it_went(result: "Result", recipe: Recipe) -> str:
    jobs, done = result.headline.jobs, result.headline.jobs_done
    if result.rank:
        return _how_a_rank_went(result)
    if result.untouched:
        return "already complete; nothing was changed"
    sources = len(recipe.source.files) or recipe.source.totals.files
    if result.complete and jobs < sources:
        return f"done: the limit was reached after {jobs} of {sources} sources"
    if result.complete:
        return f"done: all {jobs} sources are converted"
    reason = "stopped" if result.stopped else "incomplete"
    return f"{reason}: {done} of {jobs} sources are converted, {len(result.failed)} failed"


def _how_a_rank_went(result: "Result") -> str:
    jobs, done = result.headline.jobs, result.headline.jobs_done
    if result.untouched:
        return f"rank {result.rank}: the run is complete; nothing was changed"
    if result.complete:
        return f"rank {result.rank} is done: all of its sources are converted ({jobs})"
    reason = "stopped" if result.stopped else "incomplete"
    return (
        f"rank {result.rank}, {reason}: {done} of {jobs} sources are converted, {len(result.failed)} failed"
    )


def missing_text(result: "Result", world: int, numbers: str) -> str:
    """Describe what a merge lacks, and how to get it."""
    return message(
        f"{len(result.missing):,} of {result.headline.jobs:,} sources are not converted: nothing was joined",
        f"run these ranks again (sbatch --array={numbers}), each with --world {world}; then merge again",
        folder=result.out,
        world=world,
        ranks=numbers,
        given_up=f"{len(result.failed):,} of them, see {program()} status {_typed(result.out)}"
        if result.failed
        else "none of them",
    )


def saved_text(out: Path | str) -> str:
    """Say what to do with a plan that was saved."""
    called, place = program(), _typed(out)
    share = f"convert a share of it on each machine: {called} --out {place} --rank I --world N"
    return message("the plan is saved", share, f"then finish it once: {called} merge {place}")


def _advice(result: "Result", recipe: Recipe) -> list[str]:
    if result.rank and result.complete:
        return (
            [] if result.untouched else [f"when all ranks are done: {program()} merge {_typed(result.out)}"]
        )
    if not result.complete:
        blocked = result.failed and recipe.rules.is_limited
        why = ["the limit counts from the first source on, so sources after a failed one cannot be finished"]
        seen = [f"to see what failed, and why: {program()} status {_typed(result.out)}"]
        again = "run the same command again: it continues where it stopped"
        return [*(why if blocked else []), again, *(seen if result.failed else [])]
    if not result.headline.documents:
        return [_why_nothing(result.headline, recipe.rules)]
    head, rules = result.headline, recipe.rules
    traps = trainers.warnings(rules, head.train_shards)
    return [*_about_splits(result, rules), *_about_limit(head, rules), *traps]


def _why_nothing(head: "Headline", rules: Rules) -> str:
    """Return why a run has no documents."""
    if head.filtered_rows and not head.null_rows + head.empty_rows:
        return (
            f"there are no documents: the filter keeps none of {head.filtered_rows:,} rows; look at --where,"
            " --min-score and --min-int-score, then run again: the folder is free for another recipe"
        )
    column = f"look at the column {rules.text_column} (--text-column)"
    return f"there are no documents: check the skipped rows: {column}, and the filter if there is one"


def _about_limit(head: "Headline", rules: Rules) -> list[str]:
    """Say that a limit was not reached, which nobody can see from the numbers of the output."""
    limits = {"--limit-documents": (rules.limit_documents, head.documents)}
    limits["--limit-tokens"] = (rules.limit_tokens, head.tokens + head.dropped_tokens)
    told = {flag: (most, found) for flag, (most, found) in limits.items() if most is not None}
    if not told or any(found >= most for most, found in told.values()):
        return []
    missed = " and ".join(f"{flag} {most:,}, and there are {found:,}" for flag, (most, found) in told.items())
    return [f"the limit was not reached: {missed} in all sources"]


# Of failures that have the same reason, this many are told with their values.
_MOST_FAILURES = 3


def failures(result: "Result") -> list[str]:
    """Describe each source that failed once: in full, or, where many have one reason, by name."""
    alike: dict[str, list[Quarantined]] = {}
    for failed in result.failed:
        alike.setdefault(failed.reason.partition("\n")[0], []).append(failed)
    lines = [f"{one.path} failed: {one.reason}" for group in alike.values() for one in group[:_MOST_FAILURES]]
    for reason, group in alike.items():
        if more := group[_MOST_FAILURES:]:
            which = ", ".join(one.path for one in more[:3]) + (" ..." if len(more) > 3 else "")
            lines.append(
                message(
                    f"{len(more):,} more failed in the same way: {reason}",
                    f"all of them: {program()} status {_typed(result.out)}",
                    sources=which,
                )
            )
    return lines


def copied_text(copied: "Copied") -> str:
    """Describe what was copied."""
    done = "the copy was complete; nothing was sent" if copied.bytes_found == copied.bytes else "copied"
    return message(
        done,
        f"to prove it once more: {program()} verify {_typed(copied.out)}",
        run=copied.run,
        to=copied.out,
        files=f"{copied.files:,}",
        bytes=f"{copied.bytes:,}, of which {copied.bytes_found:,} were there",
        time=f"{copied.seconds:,.1f} s",
    )


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


def what_next(result: "Result", rules: Rules, *, is_demo: bool = False) -> str:
    """Return the commands that somebody may type next; after the demo, what was made and how it is read."""
    if is_demo and result.sample:
        return _after_the_demo(result)
    if result.untouched or not result.sample:
        return ""
    called, out = program(), _typed(result.out)
    words = (f"verify {out}", f"show {out} {result.sample}", f"browse {out}")
    return "\n".join([*_who_reads(result, rules), "", "Try next:", *(f"  {called} {word}" for word in words)])


def _who_reads(result: "Result", rules: Rules) -> list[str]:
    """Return which trainers read the run as it is, each with what is typed there."""
    if result.rank:
        return []
    found = trainers.readings(rules, str(result.out), result.headline.train_shards)
    reading = [one for one in found if not one.why_not]
    if not reading:
        return []
    width = max(len(one.trainer) for one in reading)
    return [
        "",
        "Trainers that read it as it is:",
        *(f"  {one.trainer:{width}}  {one.line}" for one in reading),
    ]


def _typed(place: Path | str) -> str:
    """Return a place as it is typed in a shell, from the current folder."""
    return shlex.quote(str(_short(place)))


def _after_the_demo(result: "Result") -> str:
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
    called, typed = program(), _typed(result.out)
    lines = ["", f"The first line in {line.name}:", f"  {first[:200]}", ""]
    lines += _how_to_read(manifest.rules, out, line.name)
    words = (f"browse {typed}", f"verify {typed}", f"show {typed} {line.name}", "plan --version 10B")
    return "\n".join([*lines, "", "Try next:", *(f"  {called} {word}" for word in words)])


def _how_to_read(rules: Rules, out: Path | str, shard: str) -> list[str]:
    if rules.is_packed or isinstance(out, str):
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


def _short(path: Path | str) -> Path | str:
    if isinstance(path, str):
        return path
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


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
    for pulse in found.running[:_MOST_RANKS]:
        rows["rate" if len(found.running) == 1 else f"session {pulse.session}"] = _pulse_text(pulse)
    rows |= _skipped(found)
    advice = []
    if found.missing_shards:
        rows["missing"] = (
            f"{len(found.missing_shards):,} token shards, starting with {found.missing_shards[0]}"
        )
        advice = [f"to make them again: {program()} repair {_typed(found.folder)}"]
    failures = [printable(_failure(job)) for job in found.failed]
    return "\n".join([message(f"{found.folder}: {state}", *advice, **rows), *failures])


def _failure(job: "FailedJob") -> str:
    times = "1 attempt" if job.attempts == 1 else f"{job.attempts:,} attempts"
    first, *values = job.reason.splitlines() or [""]
    return "\n".join([f"  failed  {job.path} ({times}): {first}", *(f"        {value}" for value in values)])


def versions_text(own: str, versions: Sequence[SourceManifest]) -> str:
    """Describe the versions of the data that can be named."""
    rows = {"demo": "made on this machine, for trying: 4 files, 4M tokens"}
    for one in versions:
        told = one.totals
        if told.files:
            where = f"{one.dataset} {one.folder}".strip()
            rows[one.name] = f"{told.files:,} files, {told.bytes / 1e9:,.1f} GB of parquet: {where}"
    use = f"{program()} --version NAME; any other dataset: {program()} pin --help"
    return f"fwconvert {own}\n" + message("versions of the data:", use, **rows)


def repaired_text(result: "Result", recipe: Recipe, problems: int) -> str:
    """Describe what a repair has done."""
    if not result.complete:
        return outcome(result, recipe)
    head = result.headline
    again = head.jobs - result.jobs_found
    done = "repaired: the run is whole" if problems or again else "nothing is damaged: the run is whole"
    return message(
        done,
        f"to prove it once more: {program()} verify {_typed(result.out)}",
        folder=result.out,
        problems_found=f"{problems:,}",
        converted_again=f"{max(0, again):,} of {head.jobs:,} sources",
        tokens=f"{head.tokens:,} of {head.documents:,} documents",
        time=f"{result.seconds:,.1f} s",
    )


def _pulse_text(pulse: "Pulse") -> str:
    parts = [f"{pulse.phase} {percent(pulse.progress).strip()}", f"{duration(pulse.seconds_left)} left"]
    if pulse.limit:
        parts.append(f"limit: {pulse.limit}")
    for rate, shown, unit in (
        (pulse.tokens_per_second, humanised, "tokens/s"),
        (pulse.source_bytes_per_second, megabytes, "MB/s"),
        (pulse.fetched_bytes_per_second, megabytes, "MB/s fetched"),
    ):
        if rate is not None:
            parts.append(f"{shown(rate)} {unit}")
    age = pulses.age(pulse)
    return ", ".join([*parts, *([f"{_seconds(age)} ago"] if age is not None and age >= _OLD_SECONDS else [])])


def verify_text(report: "Report", out: Path | str) -> str:
    """Describe what verify found."""
    problems = [printable(f"  {problem.file}: {problem.what}") for problem in report.problems]
    verdict = "no problems" if report.ok else f"{len(report.problems):,} problems"
    rows = {"files": f"{report.files:,}", "bytes": f"{report.bytes:,}", "tokens": f"{report.tokens:,}"}
    rows["documents"] = f"{report.documents:,}"
    if not report.ok:
        problems.append(f"  -> to repair it: {program()} repair {_typed(out)}")
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
