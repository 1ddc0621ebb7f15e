"""Token shards as one zstd frame each, for shards that are shipped rather than mapped.

A frame declares the size of its content and carries a checksum of it. What it
declares is compared with everything else that is known before any of it is
unpacked: 200 KB of zeros may become 7 GB. zstd's output depends on its version
and its level, so both are part of the recipe; it does not depend on the number
of threads, as long as there is one.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwconvert import files
from fwconvert.errors import ShardError, message
from fwconvert.formats import ZIP_LEVEL

STEP = 4 * 2**20
# Small enough that even zeros, which expand 33,000 times, take no more than 34 MB.
_SMALL_STEP = 2**10
# Any frame may unpack to this size: 100M tokens of 2 bytes, and some more. Beyond that it must have a
# ratio that tokens can have, which is usually about 2. A repeated document reaches 5,000: a larger shard of
# that kind is refused, and has to be unpacked by its owner.
_ANY_CONTENT = 2**28
_MOST_RATIO = 100
# Nothing compresses better than zeros.
_ZEROS_RATIO = 2**16
# How much of the content a reader has to keep in memory: no more than `zstd` itself allows. Ours need 2 MB,
# and where several are read side by side, none may ask for much more.
_MOST_WINDOW = 2**27
OWN_WINDOW = 2**23
_HEADER_BYTES = 18
_CUT_SHORT = "it is cut short"
_NO_MEMORY = "there is not enough memory for the size it declares"


def _nothing() -> None:
    pass


def _zstandard() -> Any:
    import zstandard  # noqa: PLC0415  # needed only for compressed shards

    return zstandard


def _decompressor(window: int) -> Any:
    return _zstandard().ZstdDecompressor(max_window_size=window)


def zip_file(
    path: Path, write: Callable[[bytes], None], threads: int, tick: Callable[[], None] = _nothing
) -> None:
    """Pass the content of a file, as one frame, to `write`. `tick` is called often, and may raise."""
    size = files.state_of(path).st_size
    # Zero threads would give different bytes than one or more.
    compressor = _zstandard().ZstdCompressor(ZIP_LEVEL, threads=max(1, threads), write_checksum=True)
    frame = compressor.compressobj(size=size)
    with files.open_to_read(path) as file:
        while part := file.read(STEP):
            write(frame.compress(part))
            tick()
    write(frame.flush())


@contextmanager
def unzipping(path: Path, window: int = _MOST_WINDOW) -> Iterator[Any]:
    """Open the content of a frame as a stream; raise ShardError if it is damaged."""
    try:
        with _opened(path) as file, _decompressor(window).stream_reader(file) as content:
            yield content
    except _zstandard().ZstdError as error:
        raise _broken(path, error) from error
    except MemoryError as error:
        raise _broken(path, _NO_MEMORY) from error


def head(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of the content of a frame, or all there are."""
    with unzipping(path) as content:
        read: bytes = content.read(most)
    if len(read) < min(most, content_size(path)):
        raise _broken(path, _CUT_SHORT)
    return read


def content_size(path: Path) -> int:
    """Return the size of its content that a frame declares."""
    try:
        with _opened(path) as file:
            start = file.read(_HEADER_BYTES)
        if not start.startswith(_zstandard().FRAME_HEADER):  # A skippable frame begins differently.
            raise _broken(path, "it does not begin with a frame")
        parameters = _zstandard().get_frame_parameters(start)
    except _zstandard().ZstdError as error:
        raise _broken(path, error) from error
    if parameters.content_size == _zstandard().CONTENTSIZE_UNKNOWN or not parameters.has_checksum:
        raise _broken(path, "it does not declare the size of its content, or has no checksum")
    if parameters.dict_id:
        raise _broken(path, "it needs a dictionary")
    return int(parameters.content_size)


def unpackable_size(path: Path) -> int:
    """Return the size of its content that a frame declares; raise ShardError if that is implausibly large."""
    size = content_size(path)
    packed = files.state_of(path).st_size
    most = max(min(_ANY_CONTENT, _ZEROS_RATIO * (packed + 1)), _MOST_RATIO * packed)
    if size > most:
        raise ShardError(
            message(
                "a compressed token shard has an implausible compression ratio, so it is not unpacked",
                "if you trust it, unpack it where it is (zstd -d): a plain file is preferred",
                file=path,
                content=f"{size:,} bytes",
                at_most=f"{most:,} bytes",
            )
        )
    return size


def unzip(path: Path, most: int, tick: Callable[[], None] = _nothing) -> NDArray[np.uint8]:
    """Return the whole content of a frame; raise ShardError if it has more than `most` bytes."""
    size = unpackable_size(path)
    if size > most:
        raise _broken(path, f"its content has {size:,} bytes, more than the {most:,} allowed")
    try:
        content, done = np.empty(size, np.uint8), 0
        for part in _parts(path):
            tick()
            if done + len(part) > size:
                raise _broken(path, f"its content has more than the {size:,} bytes that it declares")
            content[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
    except MemoryError as error:
        raise _broken(path, _NO_MEMORY) from error
    return content


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the content of a frame, and fail unless the frame is whole and nothing follows it."""
    frame = _decompressor(_MOST_WINDOW).decompressobj()
    try:
        with _opened(path) as file:
            while not frame.eof and (part := file.read(_SMALL_STEP)):
                yield frame.decompress(part)
            rest = frame.unused_data or file.read(1)
    except _zstandard().ZstdError as error:
        raise _broken(path, error) from error
    if not frame.eof or rest:
        raise _broken(path, "there is something after its end" if rest else _CUT_SHORT)


def _opened(path: Path) -> io.FileIO:
    try:
        return files.open_to_read(path)
    except OSError as error:
        raise _broken(path, error.strerror) from error


def _broken(path: Path, reason: object) -> ShardError:
    return ShardError(message("a compressed token shard cannot be read", file=path, reason=reason))
