"""The oracle: what a conversion must give, from the rows of its sources and FORMAT.md alone.

tests/support/naive.py grown up. It shares no code with fwconvert: a source is a list of tokens (streams), a
token shard is a list of stretches of such lists (layouts), and all else (bytes, indexes, manifest lines)
follows from those. `convert` gives the finished run; `Run.unfinished` what there is while sources lack.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from worlds import shard_files, streams
from worlds.layouts import ENDLESS, Layout, Shard, number
from worlds.recipes import Rules
from worlds.sources import Source
from worlds.streams import Job, sha256


@dataclass
class Run:
    """A run as it must be."""

    rules: Rules
    sources: Sequence[Source]
    jobs: list[Job]
    layout: Layout
    # Training and validation, those of the sources first, then those of the join; and what is dropped.
    shards: list[Shard]
    dropped: int
    dataset: str = "local"
    revision: str = ""
    pinned: bool = False
    # Whether the limit, if there is one, ended it.
    reached: bool = False
    _files: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def ordered(self) -> list[Shard]:
        """The token shards in the order of their names, which is how trainers read them."""
        return sorted(self.shards, key=self.name)

    def name(self, shard: Shard) -> str:
        return shard.stem + self.rules.suffix

    def tokens(self, shard: Shard) -> list[int]:
        parts = [self.jobs[s.source].stream.tokens[s.begin : s.end] for s in shard.stretches]
        return [token for part in parts for token in part]

    def starts(self, shard: Shard) -> list[tuple[int, int]]:
        """Return where documents start in a shard, and their rows."""
        found, first = [], 0
        for stretch in shard.stretches:
            documents = self.jobs[stretch.source].stream.documents
            inside = [one for one in documents if stretch.begin <= one.start < stretch.end]
            found += [(first + one.start - stretch.begin, one.row) for one in inside]
            first += stretch.end - stretch.begin
        return found

    def place(self, source: int, position: int) -> tuple[Shard, int] | None:
        """Return the shard that has a token of a source, and where in it; None if it was dropped."""
        for shard in self.shards:
            first = 0
            for stretch in shard.stretches:
                if stretch.source == source and stretch.begin <= position < stretch.end:
                    return shard, first + position - stretch.begin
                first += stretch.end - stretch.begin
        return None

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the output but manifest.json, by its path."""
        if not self._files:
            for shard in self.shards:
                self._files |= self._files_of(shard)
        return self._files

    def _files_of(self, shard: Shard) -> dict[str, bytes]:
        contents = shard_files.Contents(
            self.rules, self.tokens(shard), self.starts(shard), [first for _, first in shard.segments]
        )
        beside = {shard.stem + suffix: made for suffix, made in contents.sidecars().items()}
        return {
            self.name(shard): contents.shard(),
            f"index/{shard.stem}.docs": contents.index(),
            **beside,
        }

    def manifest(self) -> bytes:
        """Return manifest.json up to its sessions."""
        return self._manifest(self.jobs, self.shards, complete=True)

    def unfinished(self, missing: Iterable[str]) -> bytes:
        """Return manifest.json up to its sessions while these sources could not be converted."""
        missing = set(missing)
        paths = [job.source.path for job in self.jobs]
        done = [at for at, path in enumerate(paths) if path not in missing]
        if self.rules.limit_documents is not None or self.rules.limit_tokens is not None:
            # What is left for a source follows from all before it.
            first = min(at for at, path in enumerate(paths) if path in missing)
            done = [at for at in done if at < first]
        own = [one for one in self._own_shards() if one.stretches[0].source in done]
        return self._manifest([self.jobs[at] for at in done], own, complete=False)

    def _own_shards(self) -> list[Shard]:
        """Return what each source gives by itself, before anything is joined."""
        return [shard for at in range(len(self.jobs)) for shard in self.layout.own(at)[0]]

    def _manifest(self, jobs: list[Job], shards: list[Shard], *, complete: bool) -> bytes:
        lines = [job.line(self._tail_tokens(job, shards)) for job in jobs]
        rules = self.rules.line(self.layout.digits)
        listed = [self._source_line(source) for source in self.sources]
        known: list[Any] = [
            [one["path"], one["bytes"], one["sha256"]] if self.pinned else [one["path"]] for one in listed
        ]
        rows: dict[str, Any] = {
            "format": "fwconvert run manifest 1",
            "headline": self._headline(lines, shards, complete=complete),
            "recipe_id": sha256(compact([self.dataset, self.revision, known, rules])),
            "dataset": self.dataset,
            "revision": self.revision,
            "rules": rules,
            "sources": listed,
            "jobs": lines,
            "shards": [self._shard_line(shard) for shard in sorted(shards, key=self.name)],
        }
        return b"{\n" + b"".join(b'"%s": %s,\n' % (key.encode(), _rows(v)) for key, v in rows.items())

    def _tail_tokens(self, job: Job, shards: list[Shard]) -> int:
        """Return how many tokens of a job are in none of its own shards."""
        own = f"_{number(self._index(job), 5)}_"
        return job.tokens - sum(shard.size for shard in shards if self._is_own(shard, own))

    def _is_own(self, shard: Shard, part: str) -> bool:
        return self.rules.layout == "independent" and part in shard.stem.removeprefix(self.rules.name)

    def _index(self, job: Job) -> int:
        return next(at for at, one in enumerate(self.jobs) if one is job)

    def _source_line(self, source: Source) -> dict[str, Any]:
        digest = sha256(source.content) if self.pinned else None
        return {"path": source.path, "bytes": len(source.content), "sha256": digest}

    def _headline(self, jobs: list[dict[str, Any]], shards: list[Shard], *, complete: bool) -> dict[str, Any]:
        val = sum(shard.split == "val" for shard in shards)
        ended = complete and self.reached
        line = {
            "complete": complete,
            "jobs": len(self.jobs) if ended else len(self.sources),
            "jobs_done": len(jobs),
            "train_shards": len(shards) - val,
            "val_shards": val,
            **{
                key: sum(job[key] for job in jobs)
                for key in ("documents", "tokens", "null_rows", "empty_rows")
            },
        }
        filtered = sum(job.get("filtered_rows", 0) for job in jobs)
        optional = {"dropped_tokens": self.dropped if complete else 0, "filtered_rows": filtered}
        return line | {name: value for name, value in optional.items() if value}

    def _shard_line(self, shard: Shard) -> dict[str, Any]:
        made = self.files if shard in self.shards else self._files_of(shard)
        content = made[self.name(shard)]
        line = {
            "name": self.name(shard),
            "split": shard.split,
            "tokens": shard.size,
            "documents": len(self.starts(shard)),
            "bytes": len(content),
            "sha256": sha256(content),
            "index_sha256": sha256(made[f"index/{shard.stem}.docs"]),
            "segments": shard.segments,
        }
        beside = [shard.stem + suffix for suffix in shard_files.SIDECARS.get(self.rules.format, ())]
        if beside:
            line["sidecars"] = [{"name": n, "bytes": len(made[n]), "sha256": sha256(made[n])} for n in beside]
        return line


def convert(
    sources: Sequence[Source],
    rules: Rules,
    *,
    pinned: bool = False,
    dataset: str = "local",
    revision: str = "",
) -> Run:
    """Return what a conversion of these sources, in their order, must give."""
    jobs, reached = streams.jobs(sources, rules)
    # Of sizes only those count that nobody can change.
    largest = max((len(source.content) for source in sources), default=0) if pinned else 0
    digits = max(3, len(str(max(largest // (rules.shard_tokens or ENDLESS), len(sources)))))
    layout = Layout(rules, [job.tokens for job in jobs], len(sources), digits)
    return Run(rules, sources, jobs, layout, *layout.shards(), dataset, revision, pinned, reached)


def compact(value: object) -> bytes:
    """Return compact JSON in UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _rows(value: object) -> bytes:
    """Return JSON in which each element of a list has a line of its own."""
    if not isinstance(value, list) or not value:
        return compact(value)
    return b"[\n" + b",\n".join(map(compact, value)) + b"\n]"
