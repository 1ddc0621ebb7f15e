"""Addresses as anybody may see them: without user, password, query and fragment.

A mirror's address may hold a password, and the query of the address to which a
hub redirects is a signature: whoever has it may fetch. So no message, record or
log of ours has an address that did not go through here.
"""

import re
from urllib.parse import urlsplit

_HIDDEN = "(an address that is not shown)"
_ADDRESS = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*[^\s'\"<>.,;:)]")


def shown(address: str) -> str:
    """Return an address without what may be secret in it; of one that makes no sense, nothing at all.

    Where a password was not quoted nobody can tell where it ends. Then an @
    stands behind the host, or what seems to be the port is no number.
    """
    try:
        parts = urlsplit(address)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return _HIDDEN
    if "@" in parts.path + parts.query + parts.fragment:
        return _HIDDEN
    if not parts.netloc:
        return re.split("[?#]", address)[0]
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def is_one(address: str) -> bool:
    """Return whether an address makes sense, so that it can be shown."""
    return shown(address) != _HIDDEN


def plain(text: object) -> str:
    """Return what somebody else says, with all addresses in it as `shown`."""
    return _ADDRESS.sub(lambda found: shown(found[0]), str(text))
