"""The hub's own client, loaded when it is first needed: that takes half a second."""

import os
import re
from functools import cache
from importlib import import_module
from types import SimpleNamespace

from fwconvert.errors import HubError, UsageError, message


def endpoint() -> str:
    """Return the address of the hub or its mirror."""
    return str(client().constants.ENDPOINT)


def headers() -> dict[str, str]:
    """Return the headers of a request: who asks, and the token if there is one."""
    try:
        return dict(client().build_hf_headers())
    except OSError as error:
        raise HubError(
            message(
                "the file with the hub's token cannot be read",
                "look at HF_HOME, or set HF_TOKEN",
                file=error.filename,
                reason=error.strerror,
            )
        ) from None


def plain(error: BaseException) -> str:
    """Return an error's text without the queries of addresses: they may be signatures."""
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", " ".join(str(error).split()))


@cache
def client() -> SimpleNamespace:
    """Load the client; return what we use of it."""
    try:
        hub, utils = import_module("huggingface_hub"), import_module("huggingface_hub.utils")
        return SimpleNamespace(
            session=utils.get_session,
            constants=hub.constants,
            errors=import_module("huggingface_hub.errors"),
            httpx=utils.httpx,
            hf_hub_url=hub.hf_hub_url,
            build_hf_headers=utils.build_hf_headers,
            hf_raise_for_status=utils.hf_raise_for_status,
            parse_ratelimit_headers=utils.parse_ratelimit_headers,
        )
    except ValueError as error:
        named = [name for name in os.environ if name.startswith("HF_") and "TOKEN" not in name]
        raise UsageError(
            message(
                "a variable HF_... has a value that the hub's client cannot use",
                "timeouts are whole seconds; HF_ENDPOINT is like https://huggingface.co",
                reason=error,
                variables=", ".join(f"{name}={os.environ[name]}" for name in sorted(named)),
            )
        ) from error
