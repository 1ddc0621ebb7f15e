"""Files about all token shards of a run, by which litdata, MDS and Megatron-LM find them.

They follow from the run manifest, which does not list them: whoever needs to know what must be in one makes
it again. They are written when a run is complete, before its manifest says so, and removed as soon as it is
not; so what is there fits the token shards. Each lists them by paths from itself, so a run may be moved;
Megatron-LM knows no paths but those from the folder it is started in, so its file says where the run was
when it was written, and the command that made the run writes it anew.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fwconvert import formats
from fwconvert.recipes import Rules
from fwconvert.store import base
from fwconvert.store.base import Store
from fwconvert.store.receipts import ShardLine

# The number that PyTorch's types have in a list of litdata's, of tokens of so many bytes: uint16 and int32.
_LITDATA_TYPES = {2: 20, 4: 15}
# What a tree of one leaf is called by PyTorch, which litdata asks to describe its items.
_LITDATA_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'

# A list has some 200 bytes for a token shard.
_MOST_BYTES = 2**30


def listings(rules: Rules, shards: Iterable[ShardLine], place: str) -> Mapping[str, bytes]:
    """Return the files about these token shards, by name. `place` is where the run lies."""
    kind, lines = rules.shard_format, sorted(shards, key=lambda line: line.name)
    found = {}
    for name in kind.listings:
        if name == _MEGATRON:
            found[name] = _lines(_megatron(lines, place.rstrip("/")))
            continue
        folder = name.rpartition("/")[0]
        split = [line for line in lines if line.split == (folder or "train")]
        if split:
            found[name] = _lines(_MAKERS[kind.name](rules, split, "../" if folder else ""))
    return found


def write(store: Store, rules: Rules, shards: Iterable[ShardLine]) -> None:
    """Make the files about the token shards of a run what they should be; others of these names go."""
    wanted = listings(rules, shards, store.uri)
    remove(store, rules, keep=wanted.keys())
    for name, content in wanted.items():
        if not base.holds(store, name, content):
            store.write(name, content)


def remove(store: Store, rules: Rules, keep: Iterable[str] = ()) -> None:
    """Remove the files about token shards: they are being made, or made again."""
    names = [name for name in rules.shard_format.listings if name not in {*keep} and store_has(store, name)]
    if names:
        store.remove(*names)
        store.settle(*sorted({name.rpartition("/")[0] for name in names}))


def are_there(store: Store, rules: Rules, shards: Iterable[ShardLine]) -> bool:
    """Return whether the files about the token shards of a run are what they should be."""
    wanted = listings(rules, shards, store.uri)
    return all(
        base.holds(store, name, wanted[name]) if name in wanted else not store_has(store, name)
        for name in rules.shard_format.listings
    )


def problems(store: Store, rules: Rules, shards: Sequence[ShardLine]) -> Iterable[tuple[str, str]]:
    """Yield the files about token shards that are not what they should be, and what is wrong."""
    for name in rules.shard_format.listings:
        try:
            size = store.size(name)
            content = None if size is None else store.read(name, _MOST_BYTES)
        except OSError as error:
            yield name, f"cannot be read ({error.strerror or error})"
            continue
        place = store.uri if content is None else _place_in(content, store.uri) if name == _MEGATRON else ""
        wanted = listings(rules, shards, place).get(name)
        if content == wanted:
            continue
        # A copy of the output alone has no private folder.
        if content is None and name != _MEGATRON:
            yield name, "is missing"
        elif content is not None:
            yield (
                name,
                "does not match the run manifest" if wanted else "is about token shards that are not there",
            )


def store_has(store: Store, name: str) -> bool:
    """Return whether there is a file of that name."""
    return base.exists(store, name)


_MEGATRON = formats.MEGATRON.listings[0]


def _megatron(lines: Sequence[ShardLine], place: str) -> Any:
    """Return what --per-split-data-args-path takes: weights, which are tokens, and prefixes in turn."""

    def blend(split: str) -> list[str]:
        found = (
            (str(line.tokens), f"{place}/{line.name.removesuffix('.bin')}")
            for line in lines
            if line.split == split
        )
        return [word for pair in found for word in pair]

    return {"train": blend("train"), "valid": blend("val"), "test": []}


def _place_in(content: bytes, default: str) -> str:
    """Return where the run was when a list for Megatron-LM was written."""
    try:
        listed = json.loads(content)
        first = (listed["train"] or listed["valid"])[1]
        return str(first).rpartition("/")[0]
    except (ValueError, KeyError, IndexError, TypeError):
        return default


def _litdata(rules: Rules, lines: Sequence[ShardLine], path: str) -> Any:
    # litdata skips (2 + chunk_size) * 4 bytes: the header.
    skipped = rules.shard_format.header_bytes // 4 - 2
    return {
        "chunks": [
            {
                "chunk_bytes": line.bytes,
                "chunk_size": skipped,
                "dim": line.tokens,
                "filename": path + line.name,
            }
            for line in lines
        ],
        "config": {
            "chunk_bytes": None,
            "chunk_size": rules.shard_tokens,
            "compression": None,
            "data_format": [f"no_header_tensor:{_LITDATA_TYPES[rules.token_bytes]}"],
            "data_spec": _LITDATA_LEAF,
            "encryption": None,
            "item_loader": "TokensLoader",
        },
    }


def _mds(rules: Rules, lines: Sequence[ShardLine], path: str) -> Any:
    length = rules.sequence_length or formats.SEQUENCE_LENGTH
    return {
        "shards": [
            formats.mds_columns(length, rules.token_bytes)
            | {
                "raw_data": {"basename": path + line.name, "bytes": line.bytes, "hashes": {}},
                "samples": line.tokens // length,
                "zip_data": None,
            }
            for line in lines
        ],
        "version": 2,
    }


_MAKERS: Mapping[str, Callable[[Rules, Sequence[ShardLine], str], Any]] = {"litdata": _litdata, "mds": _mds}


def _lines(listed: Any) -> bytes:
    return json.dumps(listed, sort_keys=True, separators=(",", ":")).encode() + b"\n"
