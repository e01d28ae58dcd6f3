"""Where requests may go: to paths below the configured upstream, and nowhere else."""

import re
from base64 import b64encode
from urllib.parse import parse_qsl, unquote

from pyreqwest.http import Url

from batchline.secrets.addresses import public_url
from batchline.secrets.masking import is_secret_name

# How an upstream begins, and no model does.
SCHEMES = ("http://", "https://")
_VERSIONED = re.compile(r"/v[0-9][^/]*(?:/|$)")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|\[::1\]")


class InvalidUpstream(ValueError):
    """The configured upstream is not a usable URL. The message is for a person."""


class InvalidPath(ValueError):
    """A line's path is not below its upstream. The message is for a person."""


def parse(upstream: str) -> Url:
    try:
        url = Url(upstream)
    except ValueError as error:
        raise InvalidUpstream(f"the upstream {public_url(upstream)} is not a URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise InvalidUpstream(f"the upstream {public_url(upstream)} does not begin with http:// or https://")
    return url


def normalized(upstream: str) -> str:
    """One spelling for each upstream: its slots and its pace belong to it, however it is written. An invalid
    URL stays as it is, and is refused where it is used."""
    try:
        base, mark, query = str(parse(upstream)).partition("?")
    except InvalidUpstream:
        return upstream
    return base.rstrip("/") + mark + query


def join(upstream: str, path: str) -> Url:
    """The upstream's URL with the path after its own.

    An upstream that carries a version, as in `…/v1` or `…/v1beta/openai`, is what OpenAI's clients call a
    base URL: it replaces the path's /v1.
    """
    if path.startswith("/v1/") and _VERSIONED.search(parse(upstream).path):
        path = path.removeprefix("/v1")
    return below(upstream, path)


def below(upstream: str, path: str) -> Url:
    """The upstream's URL with the path after its own, unchanged."""
    base = parse(upstream)
    prefix = base.path.rstrip("/")
    url = base.with_path(prefix + path)
    # With dots in it, a path could climb out of the prefix; `with_path` keeps it from changing the host.
    if not path.startswith("/") or not url.path.startswith(f"{prefix}/"):
        raise InvalidPath(f"the path {path} does not stay below the upstream")
    return url


def is_loopback(url: Url) -> bool:
    return _LOOPBACK.fullmatch(url.host_str or "") is not None


def credentials(upstream: str) -> list[str]:
    """What is secret in the upstream's URL: a password, as it is and as it is sent, and keys in the query."""
    url = parse(upstream)
    found = [value for name, value in parse_qsl(url.query_string or "") if is_secret_name(name)]
    if url.password is not None:
        user, password = unquote(url.username), unquote(url.password)
        found += [password, b64encode(f"{user}:{password}".encode()).decode()]
    return found
