"""The Ray cluster that a program is connected to."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fwconvert.addresses import plain
from fwconvert.errors import FwconvertError, UsageError, message

_KNOCK_SECONDS = 10.0


def load() -> Any:
    """Return Ray, or raise UsageError that says how to get it."""
    try:
        import ray  # noqa: PLC0415  # an extra, and slow to load
    except ImportError as error:
        raise UsageError(
            message(
                "--engine ray needs Ray, which is not installed",
                "pip install 'fwconvert[ray]', here and on every machine of the cluster",
                reason=f"{type(error).__name__}: {plain(error)}",
            )
        ) from error
    return ray


def connect(address: str | None) -> Any:
    """Return Ray, connected to the cluster at `address`, or to the one of this machine or RAY_ADDRESS.

    A connection that the program has already is used. Raises UsageError if there is no cluster.
    """
    ray = load()
    if ray.is_initialized():
        return ray
    if address is not None and address.startswith("ray://"):
        raise UsageError(
            message(
                "ray:// is the address of Ray Client, which keeps programs outside of the cluster",
                "run the command on a machine of the cluster, or by `ray job submit`: it must see the output",
                address=address,
            )
        )
    try:
        _knock(address or os.environ.get("RAY_ADDRESS", ""))
        with _handlers_kept():
            ray.init(address or "auto", log_to_driver=False, configure_logging=False, include_dashboard=False)
        _silence(ray)
    except Exception as error:  # Ray raises what it likes: ConnectionError, RuntimeError, ValueError, ...
        raise UsageError(
            message(
                "the Ray cluster cannot be reached",
                "start one with `ray start --head` here and `ray start --address=HOST:6379` elsewhere",
                "or name another with --ray-address HOST:6379",
                address=address or "of this machine, or RAY_ADDRESS",
                reason=reason(error),
            )
        ) from error
    return ray


def _silence(ray: Any) -> None:
    """Keep Ray from printing, on standard output, that a node is lost: that is said by us.

    No setting does it, so what it listens with is closed. A version that has none of this prints.
    """
    with suppress(Exception):
        worker = ray._private.worker.global_worker  # noqa: SLF001
        worker.threads_stopped.set()
        worker.gcs_error_subscriber.close()


def _knock(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT: Ray would try for minutes before it said so."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep what this program does on signals: Ray has SIGTERM end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reason(error: BaseException) -> str:
    """Return one line: Ray puts a traceback before what it says, or pages of advice after it."""
    error = getattr(error, "cause", None) or error
    text = str(error) if isinstance(error, FwconvertError) else f"{type(error).__name__}: {plain(error)}"
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
