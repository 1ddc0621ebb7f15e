"""Read what wandb writes where there is no network: LevelDB's log format, with wandb's own messages in it.

The Python package has no reader of its own any more; its messages it has.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK = 2**15
_HEAD, _FRAME = 7, 7
_WHOLE, _LAST = 1, 4


@dataclass
class Logged:
    """What one run of wandb has logged."""

    project: str = ""
    group: str = ""
    job_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    # The text of each file of each artifact.
    artifacts: dict[str, str] = field(default_factory=dict)
    notices: str = ""
    exit_code: int | None = None


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a program whose wandb writes nothing anywhere else."""
    names = ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR")
    folder.mkdir(parents=True, exist_ok=True)
    clean = {name: "" for name in os.environ if name.startswith("WANDB_")}
    return {**clean, **dict.fromkeys(names, str(folder)), "HOME": str(folder), **settings}


def runs(folder: Path) -> list[Logged]:
    """Return the runs that were logged into a folder, in their order."""
    found = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    return [_logged(path) for path in found]


def _logged(path: Path) -> Logged:
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415  # an extra

    logged = Logged()
    for raw in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(raw)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            logged.project, logged.group, logged.job_type = run.project, run.run_group, run.job_type
            logged.config |= _values(run.config.update)
        elif kind == "history":
            logged.history.append(_values(record.history.item))
        elif kind == "summary":
            logged.summary |= _values(record.summary.update)
        elif kind == "artifact":
            for entry in record.artifact.manifest.contents:
                logged.artifacts[f"{record.artifact.name}/{entry.path}"] = Path(entry.local_path).read_text(
                    encoding="utf-8"
                )
        elif kind == "output_raw":
            logged.notices += record.output_raw.line
        elif kind == "output_logger":
            logged.notices += record.output_logger.line + "\n"
        elif kind == "exit":
            logged.exit_code = record.exit.exit_code
    return logged


def _values(items: Any) -> dict[str, Any]:
    named = (("/".join(item.nested_key) or item.key, item.value_json) for item in items)
    return {name: json.loads(text) for name, text in named}


def _records(raw: bytes) -> Iterator[bytes]:
    assert raw[:4] == b":W&B"
    at, record = _HEAD, b""
    while at + _FRAME <= len(raw):
        left = _BLOCK - at % _BLOCK
        if left < _FRAME:  # No frame begins in the last bytes of a block.
            at += left
            continue
        size, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        record += raw[at + _FRAME : at + _FRAME + size]
        at += _FRAME + size
        if kind in {_WHOLE, _LAST}:
            yield record
            record = b""
