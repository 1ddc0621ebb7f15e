"""Pin a dataset: list its files with sizes and sha256, so that a run converts exactly these bytes."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from fwconvert import records
from fwconvert.errors import FwconvertError, Stopped, UsageError, message
from fwconvert.hub.dataset import Dataset
from fwconvert.hub.retry import Retry, with_retries
from fwconvert.recipes import SourceManifest, SourceShard, Totals, is_dataset
from fwconvert.sources import catalog, reading
from fwconvert.store import atomic

# Shorter than in a run, because a user is waiting.
_RETRY_SECONDS = 60.0
# For a whole list, however slowly it arrives.
_MOST_SECONDS = 10 * _RETRY_SECONDS


def pin(
    source: str | os.PathLike[str],
    path: str = "",
    *,
    revision: str = "",
    output: str | os.PathLike[str] | None = None,
    notice: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> SourceManifest:
    """Return the source manifest of a folder on this machine, or of a dataset on the hub (owner/name).

    `path` is a folder of the dataset, `revision` a branch, tag or commit. With
    `output` the manifest is written to that file, for `recipe(version=...)`;
    whether that is possible is checked first.
    """
    given = os.fspath(source)
    if output is not None:
        _check_output(Path(output))
    notice, stop = notice or (lambda _: None), stop or threading.Event()
    if Path(given).expanduser().is_dir():
        if path or revision:
            raise UsageError(message("a local folder has neither PATH nor --revision", folder=given))
        pinned = _pin_local(given, notice, stop)
    elif given.count("/") == 1 and is_dataset(given):
        retry = Retry(_RETRY_SECONDS, stop, notice, deadline=_MOST_SECONDS)
        pinned = _pin_hub(given, path.strip("/"), revision or "main", retry)
    else:
        raise UsageError(
            message(
                "this is neither a local folder nor a dataset on the hub",
                "name an existing folder, or a dataset as owner/name",
                given=given,
            )
        )
    if output is not None:
        write(pinned, Path(output))
    return pinned


def _check_output(path: Path) -> None:
    """Raise UsageError if a manifest cannot be written there, or would overwrite something else."""
    if path.exists():
        try:
            records.read(path, SourceManifest)
        except FwconvertError:
            raise UsageError(
                message("this file exists and is not a source manifest", "choose another -o", file=path)
            ) from None
    if not path.absolute().parent.is_dir():
        raise UsageError(
            message("there is no such folder", "make it, or choose another -o", folder=path.absolute().parent)
        )


def write(manifest: SourceManifest, path: Path) -> None:
    """Write a manifest, named after its file; raise ManifestError if it is invalid."""
    _check_output(path)
    named = msgspec.structs.replace(manifest, name=path.stem)
    named.check()
    atomic.replace(path.absolute(), records.lines(records.fields(named)))


def _pin_hub(name: str, folder: str, revision: str, retry: Retry) -> SourceManifest:
    def came(size: int) -> None:
        retry.received(size, name)

    commit = with_retries(lambda: Dataset(name, revision).commit(came), name, retry)
    files = with_retries(lambda: Dataset(name, commit).files(folder, came), name, retry)
    return SourceManifest(name, name, commit, folder, files, _totals(files))


def _pin_local(folder: str, tell: Callable[[str], None], stop: threading.Event) -> SourceManifest:
    manifest, root = catalog.local(folder)
    files = []
    for number, file in enumerate(manifest.files, 1):
        tell(f"hashing {number} of {len(manifest.files)}: {file.path}, {file.bytes:,} bytes")
        proof = reading.prove(root / file.path, lambda: _raise_if(stop))
        files.append(SourceShard(file.path, proof.bytes, proof.sha256))
    return msgspec.structs.replace(manifest, files=tuple(files), totals=_totals(files))


def _raise_if(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped("stopped by the user; no manifest was written")


def _totals(files: "tuple[SourceShard, ...] | list[SourceShard]") -> Totals:
    return Totals(len(files), sum(file.bytes for file in files))
