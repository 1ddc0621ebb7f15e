"""Root for a while without its right to read everything, so that root too can test what others meet."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Of linux/capability.h: the version of the two calls, and CAP_DAC_OVERRIDE with CAP_DAC_READ_SEARCH.
_VERSION = 0x20080522
_READ_ALL = 1 << 1 | 1 << 2


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Have the permissions of files bind this thread during the block, whoever runs it (root: on Linux)."""
    if sys.platform != "linux" or os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for 64 bits
    _call(libc.capget, header, sets)
    effective = sets[0]
    sets[0] &= ~_READ_ALL
    _call(libc.capset, header, sets)
    try:
        yield
    finally:
        sets[0] = effective  # It is still permitted, so it may be taken back.
        _call(libc.capset, header, sets)


def _call(function: "ctypes._NamedFuncPointer", *arguments: object) -> None:
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
