"""The client of an object store: how it is found, with whose credentials, and how patient it is.

obstore reads the variables of each store by itself. What it does not know is added here: profiles of AWS,
endpoints without TLS, and the tries that AWS's own tools would make. A client is for one process.
"""

import os
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from fwconvert.errors import UsageError, message

# For one request and its answer; and for all tries of it.
_REQUEST_SECONDS = 60.0
RETRY_SECONDS = 120.0
_TRIES = 10
# Where each store's own tools look, too.
VARIABLES = {
    "s3": "AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
_PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}


def max_tries() -> int:
    """Return how often a request is tried: as the tools of AWS have it, or ten times."""
    given = os.environ.get("AWS_MAX_ATTEMPTS", "")
    return max(1, int(given)) if given.isdecimal() and len(given) < 4 else _TRIES


def obstore_module() -> Any:
    """Return obstore, or raise UsageError that names the extra."""
    try:
        import obstore  # noqa: PLC0415  # an extra, needed for object stores alone
        import obstore.exceptions  # noqa: F401, PLC0415
        import obstore.store  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(
            message(
                "object stores need the extra s3, which is not installed",
                "pip install 'fwconvert[s3]'",
                missing=error.name or "obstore",
            )
        ) from None
    return obstore


# The process that has talked with an object store first: its threads are not there in a forked one.
_owner = 0


@cache
def client_of(process: int, scheme: str, bucket: str, prefix: str) -> Any:
    """Return the client of this process for a bucket."""
    global _owner  # noqa: PLW0603  # what obstore does is global, too
    if _owner not in (0, process):
        raise UsageError(
            message(
                "a forked process cannot use an object store that its parent has used",
                "start processes by spawn or forkserver; in PyTorch:"
                " DataLoader(..., multiprocessing_context='spawn')",
            )
        )
    from_url = obstore_module().store.from_url
    retry = {
        "max_retries": max_tries() - 1,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {"max_backoff": timedelta(seconds=8)},
    }
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=10),
        "user_agent": "fwconvert",
    }
    settings = _s3_settings(options) if scheme == "s3" else {}
    if os.environ.get(f"{_PREFIXES[scheme]}_ALLOW_HTTP", "").lower() == "true":
        options["allow_http"] = True  # obstore knows these variables too, until it is given options.
    uri = f"{scheme}://{bucket}/{prefix}"
    try:
        made = from_url(uri, client_options=options, retry_config=retry, **settings)
    except (obstore_module().exceptions.BaseError, ValueError) as error:
        # What it says may quote a value.
        raise UsageError(
            message(
                "the settings of the object store cannot be used",
                f"check the variables ({VARIABLES[scheme]}, ...), whose values are not shown",
                place=uri,
                error=type(error).__name__,
            )
        ) from None
    _owner = process
    return made


def endpoint_of_s3() -> str:
    """Return the endpoint that the variables of AWS name, or ""."""
    return next(
        (
            os.environ[name]
            for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
            if os.environ.get(name)
        ),
        "",
    )


# Each of them leads to credentials, or says that none are needed.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


def _s3_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return what the variables do not tell obstore by themselves: profiles, and an endpoint without TLS."""
    settings: dict[str, Any] = {}
    endpoint, region = endpoint_of_s3(), ""
    is_alone = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if is_alone and not _has_profile() and not any(os.environ.get(name) for name in _CREDENTIALS):
        raise UsageError(
            message(
                "there are no credentials for the object store",
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            )
        )
    if not os.environ.get("AWS_ACCESS_KEY_ID") and _has_profile():
        settings["credential_provider"], endpoint, region = _of_profile(endpoint)
    if endpoint:
        settings["endpoint"] = endpoint
        options["allow_http"] = endpoint.startswith("http://")
    if region:
        settings["region"] = region
    return settings


def _has_profile() -> bool:
    if os.environ.get("AWS_PROFILE"):
        return True
    home = Path(os.environ.get("HOME") or os.environ.get("USERPROFILE") or "/")
    named = (
        ("AWS_SHARED_CREDENTIALS_FILE", home / ".aws/credentials"),
        ("AWS_CONFIG_FILE", home / ".aws/config"),
    )
    return any(Path(os.environ.get(name) or default).is_file() for name, default in named)


def _of_profile(endpoint: str) -> tuple[Any, str, str]:
    """Return the credentials, the endpoint and the region of the profile in use."""
    try:
        import boto3  # noqa: PLC0415  # comes with the extra, like obstore
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            message(
                "profiles of AWS need the extra s3, which is not installed as a whole",
                "pip install 'fwconvert[s3]'",
                missing=error.name or "boto3",
            )
        ) from None
    try:
        session = boto3.Session()
        client = session.client("s3")
        provider = Boto3CredentialProvider(session)
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            message(
                "the profile of AWS cannot be used",
                "check AWS_PROFILE and the files that `aws configure` writes",
                profile=os.environ.get("AWS_PROFILE", "default"),
                error=type(error).__name__,
            )
        ) from None
    own = client.meta.endpoint_url
    return (
        provider,
        endpoint or ("" if own.endswith(".amazonaws.com") else own),
        client.meta.region_name or "",
    )
