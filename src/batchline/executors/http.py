"""The executor for HTTP: each item's body is POSTed to its batch's upstream, and the answer is judged.

It may assume that the item is this worker's to run, and that its claim was durable before. It promises a
verdict on every item, whatever the upstream does, and that a request goes nowhere but to the configured
upstream, never without the key that its batch names, and that the key appears in no verdict and no log.
"""

import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import responses as phrases
from typing import Any

import msgspec
import structlog
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import (
    BodyDecodeError,
    ClientClosedError,
    DecodeError,
    DetailedPyreqwestError,
    NetworkError,
    RequestTimeoutError,
    TransportError,
)
from pyreqwest.http import HeaderMap, Url
from pyreqwest.response import Response

from batchline import __version__
from batchline.engine.output import NotJson, answered_line, as_json, failed_line, read_answer
from batchline.executors.retry import Backoff, Outage, asked_delay, rounded_up
from batchline.model import Claim, Completed, Deferred, Failed, Item, Retry, Verdict

_RETRYABLE = frozenset({408, 409, 425, 429})
_MOST_MESSAGE = 500
# What this worker cannot send at all is asked for again after this long: another worker may be set up for it.
_UNSENDABLE_DELAY = 30.0
_VERSIONED = re.compile(r"/v[0-9][^/]*(?:/|$)")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|\[::1\]")
# Dummies such as EMPTY are shorter: to blot them out would only spoil error messages.
_LEAST_SECRET = 8

_log = structlog.get_logger("batchline.http")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How requests are made. Times are in seconds; the time for a whole request is the batch's `timeout`."""

    connect_timeout: float = 10.0
    # Shorter than the 5 s after which uvicorn closes an idle connection: to send on one just then loses the request.
    idle_timeout: float = 4.0
    # A peer that vanished without a word is noticed after about a minute, not after the batch's timeout.
    keepalive_after: float = 30.0
    keepalive_every: float = 10.0
    keepalive_probes: int = 3
    most_body: int = 64 * 1024 * 1024
    retry: Backoff = Backoff(least=0.5, most=60.0)
    connect_retry: Backoff = Backoff(least=0.5, most=30.0)
    check_timeout: float = 5.0


class _Unsendable(Exception):
    """This worker is not set up to send the request, or it must not be sent. The message is for a person."""


@dataclass(frozen=True, slots=True)
class _Route:
    """Where the items of a claim go: made once, used for every item."""

    upstream: str
    client: Client
    url: Url
    key: str | None = field(repr=False)

    def without_key(self, body: bytes) -> bytes:
        """An upstream may quote the key that it refuses."""
        if self.key is None or len(self.key) < _LEAST_SECRET:
            return body
        return body.replace(self.key.encode(), b"***")


class HttpExecutor:
    """Keeps a pool of connections for each upstream and key.

    `upstream` is for batches that name none.
    """

    def __init__(
        self,
        settings: HttpSettings | None = None,
        *,
        upstream: str | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings or HttpSettings()
        self._upstream = upstream
        self._environ = environ
        self._clock = clock
        self._now = now
        self._random = random
        self._clients: dict[tuple[str, str | None], Client] = {}
        self._routes: dict[tuple[str | None, str | None, str], _Route] = {}
        self._outages: dict[str, Outage] = {}
        self._warned: set[str] = set()

    @property
    def unreachable(self) -> Mapping[str, str]:
        """Upstreams that cannot be connected to at present, and why."""
        return {upstream: outage.reason for upstream, outage in self._outages.items()}

    async def run(self, item: Item) -> Verdict:
        claim = item.claim
        settings = claim.settings
        started = self._clock()
        try:
            key = (settings.upstream, settings.api_key_env, claim.url)
            route = self._routes.get(key)
            if route is None:
                route = self._routes[key] = self._new_route(claim)
            request = (
                route.client.post(route.url)
                .header("Idempotency-Key", item.idempotency_key)
                .timeout(timedelta(seconds=min(settings.timeout, max(1.0, claim.seconds_left))))
                .body_bytes(item.body)
                # Streamed, since only so the limit holds before memory is full; it costs 1 µs more.
                .build_streamed()
            )
            async with request as response:
                read = await response.body_reader.read(self._settings.most_body + 1)
            if self._outages:
                self._reached(route.upstream)
            return self._judge(item, route, response, b"" if read is None else read.to_bytes())
        except _Unsendable as error:
            return self._unsendable(item, str(error))
        except ClientClosedError:
            # The worker stops. The attempt stays the same, and so does its Idempotency-Key.
            return Deferred(item)
        except (TransportError, DecodeError) as error:
            if _never_left(error):
                return self._unreached(item, route.upstream, started, _reason(error))
            return self._again(item, _code(error), _reason(error))
        except Exception:  # noqa: BLE001
            # One item's surprise must not touch its siblings.
            _log.exception("request failed unexpectedly", request=item.request_id)
            return self._again(
                item, "internal_error", "Batchline failed to make this request; its log says why."
            )

    async def check(self, upstream: str, api_key_env: str | None = None) -> str | None:
        """Whether requests can be made to the upstream: None, or what is wrong, for a person to read."""
        shown = _shown(upstream)
        try:
            url = _join(upstream, "/v1/models")
            client = self._client(upstream, self._key(api_key_env))
            limit = timedelta(seconds=self._settings.check_timeout)
            async with client.get(url).timeout(limit).build_streamed() as response:
                status = response.status
        except _Unsendable as error:
            return str(error)
        except RequestTimeoutError as error:
            if not _never_left(error):
                return f"{shown} does not answer within {self._settings.check_timeout:g} s"
            return f"{shown} is unreachable: {_reason(error)}"
        except (TransportError, DecodeError) as error:
            return f"{shown} is unreachable: {_reason(error)}"
        if status not in (401, 403):
            return None
        if api_key_env is None:
            return f"{shown} wants an API key ({status}): name the environment variable that holds it"
        return f"{shown} refuses the API key in {api_key_env} ({status})"

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
        self._routes.clear()

    # --- Verdicts ------------------------------------------------------------------------------------------

    def _judge(self, item: Item, route: _Route, response: Response, body: bytes) -> Verdict:
        status = response.status
        if len(body) > self._settings.most_body:
            message = f"The upstream's answer exceeds {self._settings.most_body} bytes."
            return Failed(item, failed_line(item, "response_too_large", message))
        if not 200 <= status < 300:
            return self._refused(item, response, route.without_key(body))
        try:
            embedded, usage = read_answer(body)
        except NotJson as error:
            message = f"The upstream answered {status} with a body that is not JSON: {error}"
            return self._again(item, "invalid_response", message)
        request_id = _header(response, "x-request-id") or item.idempotency_key
        return Completed(item, status, answered_line(item, status, request_id, embedded), usage)

    def _refused(self, item: Item, response: Response, body: bytes) -> Verdict:
        status = response.status
        passing = status in _RETRYABLE or status >= 500
        if passing and item.claim.attempt < item.claim.settings.max_attempts:
            asked = asked_delay(lambda name: _header(response, name), self._now())
            return Retry(item, f"http_{status}", _message(status, body), self._delay(item, asked))
        request_id = _header(response, "x-request-id") or item.idempotency_key
        return Failed(item, answered_line(item, status, request_id, as_json(body)), status)

    def _again(self, item: Item, code: str, message: str) -> Verdict:
        """No usable answer: another attempt, if one is left."""
        message = message[:_MOST_MESSAGE]
        if item.claim.attempt < item.claim.settings.max_attempts:
            return Retry(item, code, message, self._delay(item))
        return Failed(item, failed_line(item, code, message))

    def _delay(self, item: Item, asked: float = 0.0) -> float:
        return rounded_up(max(asked, self._settings.retry.delay(item.claim.attempt, self._random)))

    def _unreached(self, item: Item, upstream: str, started: float, reason: str) -> Verdict:
        outage = self._outages.get(upstream)
        if outage is None:
            outage = self._outages[upstream] = Outage(self._settings.connect_retry, self._clock, self._random)
            _log.warning("upstream unreachable", upstream=_shown(upstream), reason=reason)
        return Deferred(item, outage.failed(started, reason))

    def _reached(self, upstream: str) -> None:
        if self._outages.pop(upstream, None) is not None:
            _log.info("upstream reachable again", upstream=_shown(upstream))

    def _unsendable(self, item: Item, reason: str) -> Verdict:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("cannot send", reason=reason)
        return Deferred(item, _UNSENDABLE_DELAY)

    # --- Routes --------------------------------------------------------------------------------------------

    def _new_route(self, claim: Claim) -> _Route:
        upstream = claim.settings.upstream or self._upstream
        if upstream is None:
            raise _Unsendable("the batch names no upstream, and this worker has no default")
        url = _join(upstream, claim.url)
        key = self._key(claim.settings.api_key_env)
        return _Route(upstream, self._client(upstream, key), url, key)

    def _key(self, variable: str | None) -> str | None:
        """The API key in the variable. None if none is named; a key that is named must be there."""
        if variable is None:
            return None
        # A line feed at the end is what reading the key from a file leaves.
        key = self._environ.get(variable, "").strip()
        if not key:
            raise _Unsendable(
                f"the environment variable {variable}, which should hold the API key, is not set"
            )
        if not key.isascii() or not key.isprintable():
            raise _Unsendable(f"the API key in {variable} has characters that cannot be sent")
        return key

    def _client(self, upstream: str, key: str | None) -> Client:
        client = self._clients.get((upstream, key))
        if client is None:
            client = self._clients[upstream, key] = self._new_client(_parsed(upstream), key)
        return client

    def _new_client(self, upstream: Url, key: str | None) -> Client:
        settings = self._settings
        headers = HeaderMap({"Content-Type": "application/json"})
        if key is not None:
            headers.insert("Authorization", f"Bearer {key}", is_sensitive=True)
        builder = (
            ClientBuilder()
            .runtime_multithreaded(True)
            .http1_only()
            .user_agent(f"batchline/{__version__}")
            .default_headers(headers)
            # A body and its key are sent where the operator said, and nowhere else.
            .follow_redirects(False)
            .connect_timeout(timedelta(seconds=settings.connect_timeout))
            .pool_idle_timeout(timedelta(seconds=settings.idle_timeout))
            .tcp_keepalive(timedelta(seconds=settings.keepalive_after))
            .tcp_keepalive_interval(timedelta(seconds=settings.keepalive_every))
            .tcp_keepalive_retries(settings.keepalive_probes)
        )
        if _LOOPBACK.fullmatch(upstream.host_str or ""):
            builder = builder.no_proxy()
        return builder.build()


def _parsed(upstream: str) -> Url:
    try:
        url = Url(upstream)
    except ValueError as error:
        raise _Unsendable(f"the upstream is not a URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise _Unsendable(f"the upstream must begin with http:// or https://, but is {upstream}")
    return url


def _join(upstream: str, path: str) -> Url:
    """The upstream's URL with the path after its own.

    An upstream that carries a version, as in `…/v1` or `…/v1beta/openai`, is what OpenAI's clients call a base
    URL: it stands in the place of the path's /v1.
    """
    base = _parsed(upstream)
    prefix = base.path.rstrip("/")
    if path.startswith("/v1/") and _VERSIONED.search(prefix):
        path = path.removeprefix("/v1")
    url = base.with_path(prefix + path)
    # The path comes from a line: with dots in it, it could climb out of the prefix.
    if not path.startswith("/") or not url.path.startswith(f"{prefix}/") or url.path == f"{prefix}/":
        raise _Unsendable(f"the path {path!r} does not stay below the upstream")
    return url


def _shown(upstream: str) -> str:
    """The upstream as it may be logged: without a password."""
    try:
        return str(Url(upstream).with_password(None).with_query(None))
    except ValueError:
        return upstream


# --- Answers and errors ------------------------------------------------------------------------------------


class _Problem(msgspec.Struct, gc=False):
    """Where upstreams say what is wrong: OpenAI in error.message, vLLM once in message, FastAPI in detail."""

    error: Any = None
    message: Any = None
    detail: Any = None


_decode_problem = msgspec.json.Decoder(_Problem).decode


def _message(status: int, body: bytes) -> str:
    default = f"The upstream answered {status} {phrases.get(status, '')}".rstrip()
    try:
        problem = _decode_problem(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return default
    error = problem.error.get("message") if isinstance(problem.error, dict) else problem.error
    said = (text for text in (error, problem.message, problem.detail) if isinstance(text, str) and text)
    return next(said, default)[:_MOST_MESSAGE]


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:
        # Not text: as good as absent.
        return None


def _causes(error: DetailedPyreqwestError) -> list[str]:
    return [cause["message"] for cause in error.details["causes"] or ()]


def _never_left(error: DetailedPyreqwestError) -> bool:
    """Whether no connection came about, so that not a byte of the request was sent.

    pyreqwest's ConnectError and ConnectTimeoutError do not say that: they are also what it raises when the
    upstream took the request and then hung or hung up. The step at which hyper failed does.
    """
    return "client error (Connect)" in _causes(error)


def _code(error: DetailedPyreqwestError) -> str:
    match error:
        case RequestTimeoutError():
            return "timeout"
        case NetworkError():
            return "connection_lost"
        case BodyDecodeError() if "error reading a body from connection" in _causes(error):
            return "connection_lost"
        case _:
            return "invalid_response"


def _reason(error: DetailedPyreqwestError) -> str:
    """The innermost cause. The outermost names the URL, which may hold a password."""
    if isinstance(error, RequestTimeoutError):
        return "the connection timed out" if _never_left(error) else "no answer in time"
    causes = _causes(error)
    return re.sub(r" \(os error \d+\)$", "", causes[-1]) if causes else error.message
