"""A plan as text for people: what is estimated is rounded, what is known is not."""

from fwconvert import trainers
from fwconvert.errors import message
from fwconvert.recipes import Recipe
from fwconvert.run.preflight import Estimate, Pace

_SAMPLED = {
    "files": "{groups} row groups of {files} files, {encoded}",
    "remote": "{groups} row groups of {files} files, read by ranges, {encoded}",
}


def plan_text(found: Estimate, recipe: Recipe) -> str:
    """Describe what a run would need."""
    needed, rules = found.plan, recipe.rules
    rows: dict[str, object] = {
        "source": " ".join(filter(None, (found.dataset, found.revision, recipe.source.folder))),
        "files": f"{needed.files:,}",
        "bytes": f"{needed.source_bytes:,} ({size(needed.source_bytes)})",
        "tokens": f"about {number(needed.tokens)} ({rules.tokenizer})",
    }
    if rules.is_filtered:
        rows["filter"] = _filter_text(found)
    if found.limit_reached is not None:
        rows["limit"] = _limit_text(found, recipe)
    rows |= {
        "format": f"{rules.format}, {rules.separated}",
        "trainers": ", ".join(_readers(recipe)) or "none that is known reads these files as they are",
        "token_shards": _shards_text(found, recipe),
        "validation": _validation_text(found),
        "to_fetch": _to_fetch(found) if needed.fetched_bytes else "nothing: the files are local",
        **_disk_rows(found),
        "largest_job": _largest_text(found, recipe),
        **_pace_rows(found),
        "estimated_from": _sample_text(found),
    }
    return message("this is what the run needs", *_advice(found), *trainers.warnings(rules), **rows)


def _readers(recipe: Recipe) -> list[str]:
    """Return the trainers that will read what the recipe makes."""
    return list(dict.fromkeys(one.trainer for one in trainers.readings(recipe.rules, "") if not one.why_not))


def _filter_text(found: Estimate) -> str:
    kept = found.filtered
    if kept is None:
        return "how much it keeps is unknown before the run, so these are upper bounds"
    return f"keeps {share(kept.share)} of the rows ({kept.rows_kept:,} of {kept.rows_seen:,} looked at)"


def _limit_text(found: Estimate, recipe: Recipe) -> str:
    rules, needed = recipe.rules, found.plan
    asked = [f"{rules.limit_documents:,} documents"] if rules.limit_documents is not None else []
    asked += [f"{rules.limit_tokens:,} tokens"] if rules.limit_tokens is not None else []
    wanted = " or ".join(asked)
    if found.limit_reached:
        return f"{wanted}, reached after about {needed.files:,} files"
    tokens, documents = number(needed.tokens_without_limit), number(needed.documents_without_limit)
    return f"{wanted}: not reached, the sources have about {tokens} tokens of {documents} documents"


def _shards_text(found: Estimate, recipe: Recipe) -> str:
    tokens, val = recipe.rules.shard_tokens, found.validation.shard
    if not tokens:
        return "one, and one for validation" if val else "one"
    return f"about {significant(found.plan.shards - val):,} of {tokens:,} tokens"


def _validation_text(found: Estimate) -> str:
    one = found.validation
    if one.shard:
        return f"one shard of {one.tokens_wanted:,} tokens" + (f", from {one.source}" if one.source else "")
    if not one.tokens_wanted:
        return f"none: {one.why_not}"
    there = f"{one.source}: " if one.source else ""
    return f"none: {one.why_not} ({there}about {number(one.tokens_there)} of {number(one.tokens_wanted)})"


def _largest_text(found: Estimate, recipe: Recipe) -> str:
    needed = found.plan
    name = needed.largest_path if recipe.source.files else "a file"
    return f"{name}: {size(needed.largest_bytes)}, about {number(needed.largest_tokens)} tokens"


def _to_fetch(found: Estimate) -> str:
    most, whole = found.plan.fetched_bytes, found.plan.source_bytes
    if most >= whole:
        return f"{size(whole)}, all of them kept on disk"
    return f"{size(whole)}, at most {size(most)} of them on disk at a time"


def _disk_rows(found: Estimate) -> dict[str, object]:
    where = f" in {found.out}" if found.out else ""
    there = f", {size(found.disk_used_already)} of them are there" if found.disk_used_already else ""
    short = found.disk_needed - found.disk_used_already - found.disk_free
    peak = f"{size(found.disk_needed)} at the peak"
    return {
        "disk_needed": f"about {size(found.disk_at_end)} at the end, {peak}{where}{there}",
        "disk_free": size(found.disk_free) + (f" ({size(short)} too few)" if short > 0 else ""),
    }


def _pace_rows(found: Estimate) -> dict[str, object]:
    rows: dict[str, object] = {}
    pace = found.pace
    if pace.seconds is not None:
        rows["time"] = f"about {duration(pace.seconds)} on this machine"
    if pace.convert_seconds is not None and pace.tokens_per_second is not None:
        many = f"{pace.workers} workers" if pace.workers > 1 else "1 worker"
        how = "measured" if found.sampled_row_groups else "measured with made-up text"
        rate = f"{number(pace.tokens_per_second)} tokens/s by {many}, {how}"
        rows["to_convert_takes"] = f"about {duration(pace.convert_seconds)}: {rate}"
    if pace.fetch_seconds is not None and pace.bytes_per_second is not None:
        speed = line(pace.bytes_per_second)
        rows["to_fetch_takes"] = f"about {duration(pace.fetch_seconds)}: {speed}, {pace.bandwidth}"
    if pace.bottleneck != "unknown":
        rows["bottleneck"] = _bottleneck_text(pace)
    elif pace.bytes_per_second_wanted:
        rows["bottleneck"] = f"the network, if it is slower than {line(pace.bytes_per_second_wanted)}"
    return rows


def _bottleneck_text(pace: Pace) -> str:
    if pace.bottleneck == "network" and pace.bytes_per_second_wanted:
        return f"the network: these workers could do with {line(pace.bytes_per_second_wanted)}"
    return "the processor: more cores or machines make it faster"


def _sample_text(found: Estimate) -> str:
    form = _SAMPLED.get(found.sampled_from)
    if form is None:
        why = f" ({found.why_not_sampled})" if found.why_not_sampled else ""
        return f"averages of FineWeb-Edu: nothing could be looked at{why}"
    encoded = "encoded" if found.is_encoded else "not encoded: the vocabulary is not here"
    return form.format(groups=found.sampled_row_groups, files=found.sampled_files, encoded=encoded)


def _advice(found: Estimate) -> list[str]:
    """Return what to do about what will disappoint."""
    lines, one = [], found.validation
    if found.filtered is not None and not found.filtered.rows_kept:
        lines.append(
            "the filter keeps nothing of what was looked at: check --where, --min-score, --min-int-score"
        )
    if not one.shard and one.tokens_wanted:
        smaller = (
            f"a smaller --val-tokens, {_rounded_down(one.tokens_there)} say" if one.tokens_there > 1 else ""
        )
        whole = "--layout contiguous" if one.source and found.plan.tokens >= one.tokens_wanted else ""
        if smaller or whole:
            lines.append(f"for a validation shard pass {' or '.join(filter(None, (smaller, whole)))}")
    if found.pace.bandwidth == "" and found.plan.fetched_bytes and found.pace.fetch_seconds is None:
        lines.append("for the time to fetch, tell the speed of the line: --bandwidth 1G")
    return lines


def _rounded_down(tokens: int) -> str:
    """Return a number of tokens that is surely there, as a flag takes it."""
    half = tokens // 2 or 1
    scale = 10 ** (len(str(half)) - 1)
    return number(half // scale * scale)


# --- numbers


def significant(value: float, digits: int = 3) -> int:
    """Return a whole number with so many digits that mean something."""
    whole = round(value)
    return round(whole, digits - len(str(abs(whole)))) if whole else 0


def number(value: float) -> str:
    """Return a number as the flags take it: 9.98B, 250k."""
    whole = significant(value)
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if whole >= scale:
            return f"{whole / scale:.3g}{unit}"
    return f"{whole}"


def size(value: float) -> str:
    """Return a number of bytes: 28.5 GB."""
    whole = significant(value)
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if whole >= scale:
            return f"{whole / scale:.3g} {unit}"
    return f"{whole} bytes"


def line(bytes_per_second: float) -> str:
    """Return the speed of a line in bits, as it is sold: 150 Mbit/s."""
    bits = significant(bytes_per_second * 8, 2)
    for unit, scale in (("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)):
        if bits >= scale:
            return f"{bits / scale:.3g} {unit}"
    return f"{bits} bit/s"


def share(value: float) -> str:
    """Return a share in percent."""
    percent = 100 * value
    return f"about {percent:.0f} %" if percent >= 1 or not percent else f"about {percent:.2g} %"


def duration(seconds: float) -> str:
    """Return a time as somebody would say it: 45 s, 12 min, 3 h 20 min, 2.5 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(round(minutes, -1), 60)
    if hours < 36:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{seconds / 86400:.1f} days"
