"""From what a user names to the file that defines a tokenizer: on this machine, of the hub, or a run's own.

`--tokenizer FILE`, or `--tokenizer OWNER/NAME`, which may end in @REVISION. A
repository is pinned: its commit stands in the recipe's name of the tokenizer,
and the sha256 of the file decides. A run that has a tokenizer under this name
keeps it: neither the file nor the hub is needed to go on.
"""

import difflib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fwconvert import files
from fwconvert.errors import FwconvertError, HubError, SourceError, UsageError, message
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import Retry, with_retries
from fwconvert.recipes import Rules, is_commit, is_dataset, is_revision, is_safe
from fwconvert.tokens.defined import Given
from fwconvert.tokens.definition import MOST_BYTES

KINDS = {".json": "hf", ".model": "sentencepiece", ".tiktoken": "ranks", ".pkl": "ranks", ".ranks": "ranks"}
# In a repository, the first that is there.
_FILES = ("tokenizer.json", "tokenizer.model")
CONFIG = "tokenizer_config.json"
# Those of chat models have a long template, and each added token again.
_MOST_CONFIG_BYTES = 16 * 2**20
# Someone is waiting for it.
_PATIENCE_SECONDS = 20.0
_MOST_SECONDS = 600.0


@dataclass(frozen=True)
class Kept:
    """The tokenizer that a run has already: what its rules say, and the file, if it is there."""

    rules: Rules
    content: bytes | None


def named(typed: str, kept: Callable[[], Kept | None] = lambda: None) -> Given | None:
    """Return the file that a user means; None if this is no name of a file or a repository.

    `kept` returns the tokenizer of the run that is continued, if there is one.
    """
    if not typed:
        return None
    path = Path(typed)
    repository, _, revision = typed.partition("@")
    is_repository = repository.count("/") == 1 and is_dataset(repository)
    if path.suffix.lower() in KINDS:
        return _from_file(path, kept)
    if _exists(path):
        raise UsageError(_no_definition(path))
    if not is_repository:
        return None
    if not is_revision(revision):
        raise UsageError(message("this is no revision of a repository", given=repr(revision)))
    return _of_run(repository, revision, kept()) or _from_hub(repository, revision)


# --- on this machine


def _from_file(path: Path, kept: Callable[[], Kept | None]) -> Given:
    kind = KINDS[path.suffix.lower()]
    place = path.expanduser() if str(path).startswith("~") else path
    try:
        content = files.read_whole(place, MOST_BYTES)
        if path.suffix.lower() == ".tiktoken":
            content = _with_rules(place, content)
        config = _read_if_there(place.with_name(CONFIG)) if kind == "hf" else b""
    except FileNotFoundError:
        found = kept()
        if found is not None and found.content is not None and found.rules.tokenizer == path.name:
            return _kept(found.rules, found.content)
        raise UsageError(_missing(place)) from None
    except files.TooLarge as error:
        raise UsageError(
            message(
                "this file is too large for a tokenizer",
                "name a tokenizer.json, a sentencepiece .model or a .tiktoken file",
                file=place,
                bytes=f"{error.size:,}",
                at_most=f"{MOST_BYTES:,}",
            )
        ) from None
    except OSError as error:
        raise UsageError(
            message("the file of the tokenizer cannot be read", file=place, reason=error.strerror or error)
        ) from None
    return Given(kind, path.name, content, config)


def _with_rules(path: Path, table: bytes) -> bytes:
    """Return a rank table with the JSON beside it: how text is cut, and which tokens are special."""
    beside = path.with_suffix(".json")
    try:
        return files.read_whole(beside, _MOST_CONFIG_BYTES).strip().replace(b"\n", b" ") + b"\n" + table
    except FileNotFoundError:
        raise UsageError(
            message(
                "a rank table alone does not say how text is cut into words",
                'put a file beside it: {"pattern": "...", "special_tokens": {"<|endoftext|>": 50256}}',
                table=path,
                missing=beside,
            )
        ) from None


def _read_if_there(path: Path) -> bytes:
    try:
        return files.read_whole(path, _MOST_CONFIG_BYTES)
    except FileNotFoundError:
        return b""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # A name that no file can have.
        return False


def _missing(path: Path) -> str:
    try:
        there = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix.lower() in KINDS)
    except OSError:
        there = []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.5) or there[:1]
    hint = f"did you mean {path.parent / near[0]}?" if near else "check the path"
    return message("the file of the tokenizer does not exist", hint, file=path)


def _no_definition(path: Path) -> str:
    found = [name for name in _FILES if (path / name).is_file()]
    if found:
        return message("this is a folder", f"did you mean --tokenizer {path / found[0]}?", tokenizer=path)
    return message(
        "this is no file that defines a tokenizer",
        "name a tokenizer.json, a sentencepiece .model or a .tiktoken file, or OWNER/NAME of the hub",
        tokenizer=path,
    )


# --- of a run


def _of_run(repository: str, revision: str, kept: Kept | None) -> Given | None:
    """Return the tokenizer of a run if it is of this repository: a branch moves on, the run does not."""
    if kept is None or kept.content is None:
        return None
    name, _, commit = kept.rules.tokenizer.partition("@")
    if name != repository or (is_commit(revision) and revision != commit):
        return None
    return _kept(kept.rules, kept.content)


def _kept(rules: Rules, content: bytes) -> Given:
    """Return what a run has. Its separators are those of the run, unless the user names others."""
    ids = (None if number is None else str(number) for number in (rules.eot_id, rules.bos_id))
    return Given(rules.tokenizer_kind or "", rules.tokenizer, content, b"", *ids)


# --- of the hub


def _from_hub(repository: str, revision: str) -> Given:
    from fwconvert.hub.client import client  # noqa: PLC0415  # loads the client of the hub

    found = _from_cache(repository, revision) if client().constants.HF_HUB_OFFLINE else None
    if found is not None:
        return found
    retry = Retry(_PATIENCE_SECONDS, threading.Event(), lambda _: None, deadline=_MOST_SECONDS)

    def came(size: int) -> None:
        retry.received(size, repository)

    try:
        commit = with_retries(lambda: Dataset(repository, revision, "models").commit(came), repository, retry)
        model = Dataset(repository, commit, "models")
        entries = with_retries(lambda: model.entries(came), repository, retry)
        file = next((name for name in _FILES if name in entries), None)
        if file is None:
            raise UsageError(
                message(
                    "this repository has no tokenizer.json, and no tokenizer.model",
                    "name another repository: most models have a copy with a tokenizer.json",
                    repository=repository,
                    revision=commit,
                )
            )
        content = with_retries(lambda: model.content(file, entries[file], MOST_BYTES, came), file, retry)
        config = b""
        if CONFIG in entries:
            config = with_retries(
                lambda: model.content(CONFIG, entries[CONFIG], _MOST_CONFIG_BYTES, came), CONFIG, retry
            )
    except (HubError, SourceError) as error:
        found = _from_cache(repository, revision)
        if found is not None:
            return found
        raise _unreachable(repository, error) from None
    return Given(KINDS[PurePosixPath(file).suffix], f"{repository}@{commit}", content, config)


def _from_cache(repository: str, revision: str) -> Given | None:
    """Return what the hub's own client has fetched before, if it has."""
    from fwconvert.hub.client import client  # noqa: PLC0415  # as above

    folder = Path(client().constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    try:
        commit = revision
        if not is_commit(commit):
            name = revision or "main"
            commit = files.read(folder / "refs" / name, 100).decode().strip() if is_safe(name) else ""
        if not is_commit(commit):
            return None
        place = folder / "snapshots" / commit
        file = next(name for name in _FILES if (place / name).is_file())
        content = files.read_whole(place / file, MOST_BYTES)
        return Given(
            KINDS[Path(file).suffix], f"{repository}@{commit}", content, _read_if_there(place / CONFIG)
        )
    except (OSError, UnicodeError, StopIteration):
        return None


def _unreachable(repository: str, error: FwconvertError) -> UsageError:
    advice = f"or fetch it where there is a network: hf download {repository} tokenizer.json {CONFIG}"
    return UsageError(f"{error}\n  -> {advice}, and pass --tokenizer FILE")
