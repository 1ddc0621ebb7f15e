"""What an object store's pieces promise that need no server."""

from pathlib import Path

import pytest

from fwconvert.errors import UsageError
from fwconvert.store import bucket
from fwconvert.store.bucket import Bucket, absolute, is_uri, parse
from fwconvert.store.local import LocalStore, open_store


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("s3://bucket/some/prefix", ("s3", "bucket", "some/prefix")),
        ("s3://bucket/some//prefix/", ("s3", "bucket", "some/prefix")),
        ("gs://bucket", ("gs", "bucket", "")),
        ("az://container/x", ("az", "container", "x")),
    ],
)
def test_an_address_has_a_bucket_and_a_prefix(uri: str, parts: tuple[str, str, str]) -> None:
    assert parse(uri) == parts
    assert Bucket.at(uri).uri == "://".join([parts[0], "/".join(filter(None, parts[1:]))])
    assert is_uri(uri)
    assert absolute(uri) == uri
    store = open_store(uri, "session")
    assert (store.uri, store.session, store.is_remote, store.is_atomic) == (
        Bucket.at(uri).uri,
        "session",
        True,
        True,
    )


@pytest.mark.parametrize("place", ["out", "./s3", "C:\\out", "/s3:/x", Path("out"), "./s3:/x"])
def test_what_is_no_address_is_a_folder(place: str | Path) -> None:
    assert not is_uri(place)
    assert isinstance(open_store(place), LocalStore)


def test_an_address_that_was_made_a_path_is_refused() -> None:
    with pytest.raises(UsageError, match="pass it as text"):
        open_store(Path("s3://bucket/x"))


def test_the_etag_of_what_was_sent_is_recognised() -> None:
    """As S3 documents it: the MD5, or the MD5 of the parts' MD5s and their number."""
    sent = bucket._Digests()
    sent.add(b"hello ")
    sent.add(b"world")

    assert sent.fits("5eb63bbbe01eeed093cb22bb8f5acdc3")
    # md5(md5("hello ") + md5("world")), by md5sum and xxd.
    assert sent.fits("e09e4fd6265b36115fe3db32df945d84-2")
    assert not sent.fits("e09e4fd6265b36115fe3db32df945d84-3")
    assert not sent.fits("5eb63bbbe01eeed093cb22bb8f5acdc4")
    assert not sent.fits("")
    assert sent.bytes == 11


def test_errors_have_no_words_of_a_server() -> None:
    said = ValueError(
        "PUT http://user:canary@host/x - Server returned non-2xx status code: 403 Forbidden: "
        "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>canary</AWSAccessKeyId></Error>"
    )

    assert bucket._reason(said) == "HTTP 403 SignatureDoesNotMatch"
    assert bucket._reason(ValueError("canary")) == "the connection failed"
