"""The hub's own client, huggingface_hub, loaded on first use because that takes half a second.

We use its well-known settings, its token and its session. Cookies are not kept.
Its request headers are not used: to build them it asks the hub which environment
variables to look at, reports what it found there, and reads that answer without
a size limit.
"""

import logging
import os
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from fwconvert.addresses import is_one, plain, shown
from fwconvert.errors import HubError, UsageError, message

_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def endpoint() -> str:
    """Return the address of the hub or its mirror, without any password in HF_ENDPOINT."""
    return shown(client().constants.ENDPOINT)


def headers() -> dict[str, str]:
    """Return the headers of a request to the hub: the user agent, and the password or token if any."""
    hub = client()
    found = {"User-Agent": f"fwconvert; hf_hub/{hub.version}"}
    if login := _login(hub.constants.ENDPOINT):
        return {**found, "Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    token = None if hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else _token()
    return found if token is None else {**found, "Authorization": f"Bearer {token}"}


def session() -> Any:
    """Return the client's session, with its proxies and certificates and without cookies."""
    return _new_session(client().session)


def plain_session() -> Any:
    """Return a session without the hub's settings, for the few files on other servers."""
    return _new_session(client().httpx.Client)


def _new_session(make: Callable[[], Any]) -> Any:
    from http.cookiejar import DefaultCookiePolicy  # noqa: PLC0415  # 40 ms

    no_cookies = DefaultCookiePolicy(netscape=False, rfc2965=False, allowed_domains=())
    reason = "not a valid proxy address"
    try:
        if all(map(is_one, _proxies().values())):
            made = make()
            # Every time, because the client may replace its session.
            made.cookies.jar.set_policy(no_cookies)
            return made
    except (ImportError, OSError) as error:
        reason = plain(error)
    except (ValueError, client().httpx.InvalidURL):
        pass  # Its message would contain a part of the address.
    raise UsageError(
        message(
            "a proxy or a certificate file cannot be used",
            "a proxy looks like http://proxy.example:3128; socks5://... also needs the package socksio",
            reason=reason,
            variables=", ".join(f"{name}={shown(value)}" for name, value in _proxies().items()),
            certificates=", ".join(
                f"{name}={os.environ[name]}" for name in _CERTIFICATES if name in os.environ
            ),
        )
    )


@cache
def client() -> SimpleNamespace:
    """Load the client; return the parts that we use."""
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
        # The values may be secret, and the error message would contain part of one.
        variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("HF_"))
        named = [f"{name}={value}" if name.endswith("_TIMEOUT") else name for name, value in variables]
        raise UsageError(
            message(
                "an HF_... variable has a value that the hub's client cannot use",
                "timeouts are whole seconds; HF_ENDPOINT looks like https://huggingface.co",
                variables=", ".join(named),
            )
        ) from None
    # With HF_DEBUG set, every request is logged, but never a signature.
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_without_secrets)
    return found


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = plain(record.getMessage()), ()
    return True


def _token() -> str | None:
    """Return the user's token, if there is one; raise if it cannot be read or sent."""
    try:
        token = client().get_token()
    except UnicodeError:
        token = "\N{REPLACEMENT CHARACTER}"  # noqa: S105  # stands for one that cannot be read
    except OSError as error:
        raise HubError(
            message(
                "the file with the hub's token cannot be read",
                "check HF_HOME, or set HF_TOKEN",
                file=error.filename,
                reason=error.strerror or plain(error),
            )
        ) from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError(
            message(
                "the hub's token contains invalid characters, which are not shown",
                "set HF_TOKEN to the token alone, or run `hf auth login`",
            )
        )
    return None if token is None else str(token)


def _login(address: str) -> str:
    """Return the user:password in an address; "" if it has none."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    found = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "" if found == ":" else found


def _proxies() -> dict[str, str]:
    """Return the proxies that are set, by environment variable."""
    named = {name: value for name, value in sorted(os.environ.items()) if value}
    return {
        name: value if "://" in value else f"http://{value}"
        for name, value in named.items()
        if name.lower() in {"http_proxy", "https_proxy", "all_proxy"}
    }
