"""Inputs at URLs: http, https and s3.

obstore reads s3. It cannot read all of HTTP (docs/decisions/0018), so that pyreqwest does, as for upstreams.
No message contains the credentials or the query of a URL, because both can be secret.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url
from pyreqwest.client import SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError

from batchline.files.inputs.errors import InputRefused
from batchline.files.objects import RETRIES, client_options
from batchline.secrets.addresses import public_url

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_HTTP = ("http", "https")
_S3 = "s3"
_CONNECT = timedelta(seconds=30)
# Without data.
_SILENCE = timedelta(seconds=60)
_READ = 1024 * 1024
_GLOB = "*?["


def is_url(given: str) -> bool:
    return "://" in given


def public_name(given: str) -> str:
    """A URL without credentials, query and fragment. Anything else unchanged."""
    return public_url(given) if is_url(given) else given


def expand(given: str) -> list[str]:
    """The URLs that are meant: a pattern or a folder of s3 is all its objects in order."""
    parts = _parts(given)
    key = unquote(parts.path).lstrip("/")
    if parts.scheme != _S3 or not (key == "" or key.endswith("/") or set(_GLOB) & set(key)):
        return [given]
    pattern = key if set(_GLOB) & set(key) else f"{key}*"
    prefix = pattern[: min(pattern.index(mark) for mark in _GLOB if mark in pattern)]
    with _explained(given):
        store = _bucket(given)
        # A prefix of obstore ends at a slash.
        pages = obstore.list(store, prefix.rpartition("/")[0] or None)
        found = [entry["path"] for page in pages for entry in page]
    keys = sorted(each for each in found if fnmatchcase(each, pattern))
    if not keys:
        raise InputRefused(public_name(given), "no object matches it")
    # As in any URL: a key may have a ? or a %.
    return [f"s3://{parts.netloc}/{quote(each)}" for each in keys]


def blocks(url: str) -> Iterator[bytes]:
    """The content of a URL. Raises InputRefused."""
    with _explained(url):
        yield from _s3_blocks(url) if _parts(url).scheme == _S3 else _http_blocks(url)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InputRefused(public_name(url), f"not a URL: {error}") from error
    if parts.scheme not in (*_HTTP, _S3) or not parts.netloc:
        raise InputRefused(
            public_name(url), "give a path, or a URL that begins with http://, https:// or s3://"
        )
    return parts


def _http_blocks(url: str) -> Iterator[bytes]:
    parts = _parts(url)
    # A file that is compressed stays so; its bytes are what the digest is about.
    builder = SyncClientBuilder().gzip(False).zstd(False).brotli(False).deflate(False)
    client = builder.referer(False).connect_timeout(_CONNECT).read_timeout(_SILENCE).build()
    with client:
        request = client.get(url)
        if parts.username is not None:
            request = request.basic_auth(unquote(parts.username), unquote(parts.password or ""))
        with request.build_streamed() as response:
            if not 200 <= response.status < 300:
                raise InputRefused(public_name(url), f"the server answered {response.status}")
            while (block := response.body_reader.read(_READ)) is not None:
                yield bytes(block)


def _s3_blocks(url: str) -> Iterator[bytes]:
    found = obstore.get(_bucket(url), unquote(_parts(url).path).lstrip("/"))
    for block in found.stream(min_chunk_size=_READ):
        yield bytes(block)


def _bucket(url: str) -> "ObjectStore":
    return from_url(f"s3://{_parts(url).netloc}", client_options=client_options(), retry_config=RETRIES)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    name = public_name(url)
    try:
        yield
    except PyreqwestError as error:
        raise InputRefused(name, f"cannot be read: {type(error).__name__}") from None
    except FileNotFoundError:
        raise InputRefused(name, "there is no such object") from None
    except BaseError as error:
        # The first line; pages of debug output follow. The text contains the URL.
        reason = str(error).partition("\n")[0].replace(url, name)
        raise InputRefused(name, f"cannot be read: {reason}") from None
