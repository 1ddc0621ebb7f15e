"""The hub's own client, loaded when it is first needed: that takes half a second.

Of it we use the settings that everybody knows, the token and the session. No
cookie is kept. Its own headers are not used: to make them it asks the hub
which variables of the environment to look at, tells what it found there, and
reads that answer without a bound.
"""

import logging
import os
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from fwconvert.addresses import is_one, plain, shown
from fwconvert.errors import HubError, UsageError, message

_NO_COOKIES = DefaultCookiePolicy(netscape=False, rfc2965=False, allowed_domains=())
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def endpoint() -> str:
    """Return the address of the hub or its mirror, without the password that may be in HF_ENDPOINT."""
    return shown(client().constants.ENDPOINT)


def headers() -> dict[str, str]:
    """Return the headers of a request to the hub: who asks, and the password or the token if there is one."""
    hub = client()
    found = {"User-Agent": f"fwconvert; hf_hub/{hub.version}"}
    if login := _login(hub.constants.ENDPOINT):
        return {**found, "Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    token = None if hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else _token()
    return found if token is None else {**found, "Authorization": f"Bearer {token}"}


def session() -> Any:
    """Return the client's session, which has its proxies and certificates; it keeps no cookies."""
    return _made(client().session)


def plain_session() -> Any:
    """Return a session that knows nothing of the hub, for the little that lies elsewhere."""
    return _made(client().httpx.Client)


def _made(make: Callable[[], Any]) -> Any:
    reason = "this is the address of no proxy"
    try:
        if all(map(is_one, _proxies().values())):
            made = make()
            # Each time, since the client throws sessions away.
            made.cookies.jar.set_policy(_NO_COOKIES)
            return made
    except (ImportError, OSError) as error:
        reason = plain(error)
    except (ValueError, client().httpx.InvalidURL):
        pass  # What it has to say has a piece of the address in it.
    raise UsageError(
        message(
            "a proxy, or the file with the certificates, cannot be used",
            "a proxy is like http://proxy.example:3128; socks5://... needs the package socksio, too",
            reason=reason,
            variables=", ".join(f"{name}={shown(value)}" for name, value in _proxies().items()),
            certificates=", ".join(
                f"{name}={os.environ[name]}" for name in _CERTIFICATES if name in os.environ
            ),
        )
    )


@cache
def client() -> SimpleNamespace:
    """Load the client; return what we use of it."""
    try:
        hub, utils = import_module("huggingface_hub"), import_module("huggingface_hub.utils")
        found = SimpleNamespace(
            version=hub.__version__,
            session=utils.get_session,
            constants=hub.constants,
            errors=import_module("huggingface_hub.errors"),
            httpx=utils.httpx,
            hf_hub_url=hub.hf_hub_url,
            get_token=hub.get_token,
            parse_ratelimit_headers=utils.parse_ratelimit_headers,
        )
    except ValueError:
        # What they have in them is nobody's business; and what the error says is a piece of it.
        variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("HF_"))
        told = [f"{name}={value}" if name.endswith("_TIMEOUT") else name for name, value in variables]
        raise UsageError(
            message(
                "a variable HF_... has a value that the hub's client cannot use",
                "timeouts are whole seconds; HF_ENDPOINT is like https://huggingface.co",
                variables=", ".join(told),
            )
        ) from None
    # Who sets HF_DEBUG sees every request, but no signature.
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_without_secrets)
    return found


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = plain(record.getMessage()), ()
    return True


def _token() -> str | None:
    """Return the token of the user, if there is one; raise if it cannot be read or be sent."""
    try:
        token = client().get_token()
    except UnicodeError:
        token = "\N{REPLACEMENT CHARACTER}"  # noqa: S105  # stands for one that cannot be read
    except OSError as error:
        raise HubError(
            message(
                "the file with the hub's token cannot be read",
                "look at HF_HOME, or set HF_TOKEN",
                file=error.filename,
                reason=error.strerror or plain(error),
            )
        ) from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError(
            message(
                "the hub's token has characters that no token has; they are not shown",
                "set HF_TOKEN to the token alone, or run `hf auth login`",
            )
        )
    return None if token is None else str(token)


def _login(address: str) -> str:
    """Return user:password of an address; "" if it has none."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    found = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "" if found == ":" else found


def _proxies() -> dict[str, str]:
    """Return the proxies that are set, by the variable."""
    named = {name: value for name, value in sorted(os.environ.items()) if value}
    return {
        name: value if "://" in value else f"http://{value}"
        for name, value in named.items()
        if name.lower() in {"http_proxy", "https_proxy", "all_proxy"}
    }
