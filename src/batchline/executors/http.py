"""The executor for HTTP: each item's body is POSTed to its batch's upstream, and the answer is judged.

An item that wants another request than that is sent by `send`, and judged by whoever asked for it.
It may assume that the item is this worker's to run. It promises a verdict on every item, whatever the
upstream does; that a request goes nowhere but below the configured upstream, and never without the API key
that its batch names; and that the key appears in no verdict and no log.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache

import msgspec
import structlog
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ClientClosedError, DecodeError, RequestTimeoutError, TransportError
from pyreqwest.http import HeaderMap, Url
from pyreqwest.response import Response

from batchline import __version__
from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Fence, no_fence
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retry, TimedOut, Verdict
from batchline.secrets.redaction import Redactor
from batchline.upstreams import urls
from batchline.upstreams.faults import MAX_MESSAGE, code_of, message_of, never_left, reason_of
from batchline.upstreams.memory import STEP, BodyMemory, Share
from batchline.upstreams.pace import AnswerRate, Pace
from batchline.upstreams.retry import Backoff, Outage, requested_delay, rounded_up

_RETRYABLE = frozenset({408, 409, 425, 429})
# What this worker cannot send at all comes back after this long: another one may be set up for it.
_UNSENDABLE_DELAY = 30.0

_log = structlog.get_logger("batchline.http")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How requests are made. Times are in seconds; that for a whole request is the batch's `timeout`."""

    connect_timeout: float = 10.0
    # uvicorn closes a connection that was idle for 5 s: a request sent on it just then would be lost.
    idle_timeout: float = 4.0
    # A peer that vanished without a word is noticed after about a minute, not after the batch's timeout.
    keepalive_after: float = 30.0
    keepalive_every: float = 10.0
    keepalive_probes: int = 3
    check_timeout: float = 5.0
    max_body: int = 64 * 1024 * 1024
    # Of an answer to an operation, which is decoded: that takes up to thirty times its size.
    max_operation_body: int = 4 * 1024 * 1024
    retry: Backoff = field(default_factory=lambda: Backoff(minimum=0.5, maximum=60.0))
    connect_retry: Backoff = field(default_factory=lambda: Backoff(minimum=0.5, maximum=30.0))


class Order(msgspec.Struct, frozen=True):
    """A request of its own: what an item becomes, where it is not simply POSTed. The path and the query are
    percent-encoded already."""

    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"


class Answer(msgspec.Struct, frozen=True):
    """What came back, without the key that it may quote. `asked` is how long it asks to wait."""

    status: int
    body: bytes
    request_id: str
    requested: float = 0.0

    @property
    def passing(self) -> bool:
        """It may be another one next time."""
        return self.status in _RETRYABLE or self.status >= 500


class _TooLarge(Exception):
    """The answer is longer than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The upstream's answer exceeds {limit} bytes.")


class MissingKey(Exception):
    """The API key that a batch names is not to be had here. The message is for a person."""


@dataclass(frozen=True, slots=True)
class _Route:
    """Where items of one kind go: made once, used for each of them."""

    upstream: str
    client: Client
    url: Url
    # Of the upstream, by whichever route.
    answers: AnswerRate
    redactor: Redactor


class HttpExecutor:
    """Keeps a pool of connections for each upstream and key. `upstream` is for batches that name none."""

    def __init__(
        self,
        settings: HttpSettings | None = None,
        *,
        upstream: str | None = None,
        memory: BodyMemory | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        random: Callable[[], float] = random.random,
        timer: Callable[[float], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        self._settings = settings or HttpSettings()
        self._upstream = upstream
        self._memory = memory or BodyMemory(WorkerSettings().body_memory)
        self._largest = min(self._settings.max_body, self._memory.largest)
        self._environ = environ
        self._clock = clock
        self._now = now
        self._random = random
        self._timer = timer
        self._clients: dict[tuple[str, str | None], Client] = {}
        self._routes: dict[tuple[str | None, str | None, str], _Route] = {}
        self._outages: dict[str, Outage] = {}
        self._warned: set[str] = set()
        self._paces: dict[str, Pace] = {}
        self._answers: dict[str, AnswerRate] = {}
        self._winding_down = asyncio.Event()
        self._fence: Fence = no_fence

    @property
    def unreachable(self) -> Mapping[str, str]:
        """Upstreams that cannot be connected to at present, and why."""
        return {urls.displayed(upstream): outage.reason for upstream, outage in self._outages.items()}

    async def run(self, item: Item) -> Ran:
        route, started = None, 0.0
        try:
            route = self._route(item)
            if (self._outages or self._paces) and not await self._may_try(route.upstream):
                return Deferred(item)
            started = self._clock()
            request = (
                route.client.post(route.url)
                .header("Idempotency-Key", item.idempotency_key)
                .timeout(_limit(item.claim.settings.timeout, item.claim.seconds_left))
                .body_bytes(item.body)
                # Streamed, since only so the limit holds before memory is full. It costs 1 to 2 µs more.
                .build_streamed()
            )
            with self._memory.share() as share:
                async with request as response:
                    body = await self._read(response, share, self._largest)
                if self._outages:
                    self._reached(route.upstream)
                return self._judge(item, route, started, response, body)
        except Exception as error:  # noqa: BLE001
            return self._unanswered(item, route, started, error)

    async def send(self, item: Item, order: Order) -> Answer | Ran:
        """Send the item as the order says. Where there was no answer, or none that can be kept, a verdict."""
        route, started = None, 0.0
        try:
            route = self._route(item)
            url = urls.below(route.upstream, order.path)
            if (self._outages or self._paces) and not await self._may_try(route.upstream):
                return Deferred(item)
            started = self._clock()
            builder = (
                route.client.request(order.method, url.with_query_string(order.query) if order.query else url)
                .header("Idempotency-Key", item.idempotency_key)
                .timeout(_limit(item.claim.settings.timeout, item.claim.seconds_left))
            )
            for name, value in order.headers:
                builder = builder.header(name, value)
            if order.body is not None:
                builder = builder.header("Content-Type", order.content_type).body_bytes(order.body)
            with self._memory.share() as share:
                async with builder.build_streamed() as response:
                    limit = min(self._largest, self._settings.max_operation_body)
                    body = await self._read(response, share, limit)
                if self._outages:
                    self._reached(route.upstream)
                return self._answer(item, route, started, response, body)
        except Exception as error:  # noqa: BLE001
            return self._unanswered(item, route, started, error)

    async def check(self, upstream: str, api_key_env: str | None = None) -> str | None:
        """Before any item is run: None if requests can be made, or what is in the way, for a person."""
        displayed, limit = urls.displayed(upstream), self._settings.check_timeout
        try:
            client = self._client(upstream, self._key(api_key_env))
            request = client.get(urls.join(upstream, "/v1/models")).timeout(timedelta(seconds=limit))
            async with request.build_streamed() as response:
                status = response.status
        except (urls.InvalidUpstream, MissingKey) as error:
            return str(error)
        except (TransportError, DecodeError) as error:
            if isinstance(error, RequestTimeoutError) and not never_left(error):
                return f"{displayed} did not answer within {limit:g} s"
            return f"{displayed} is unreachable: {reason_of(error)}"
        if status not in (401, 403):
            return None
        if api_key_env is None:
            return f"{displayed} wants an API key ({status}): name the environment variable that holds one"
        return f"{displayed} refuses the API key in {api_key_env} ({status})"

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence

    def wind_down(self) -> None:
        self._winding_down.set()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _read(self, response: Response, share: Share, limit: int) -> bytes:
        """The whole body. A small one is read at once; a longer one waits for memory as it comes."""
        reader, small = response.body_reader, min(self._memory.small, limit)
        piece = await reader.read(small + 1)
        if piece is None or len(piece) <= small:
            return b"" if piece is None else piece.to_bytes()
        pieces, size = [piece], len(piece)
        await share.grow(size)
        while size <= limit:
            step = min(STEP, limit + 1 - size)
            await share.grow(step)
            piece = await reader.read(step)
            if piece is None:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
        raise _TooLarge(limit)

    # --- Verdicts ------------------------------------------------------------------------------------------

    def again(self, item: Item, answer: Answer, message: str) -> Retry:
        """Another attempt after this answer."""
        return Retry(
            item, f"http_{answer.status}", message[:MAX_MESSAGE], self._delay(item, answer.requested)
        )

    def _answer(
        self, item: Item, route: _Route, started: float, response: Response, body: bytes
    ) -> Answer | Verdict:
        requested = requested_delay(lambda name: _header(response, name), self._now())
        if response.status == 429:
            self._slow_down(route, started, requested)
        elif response.status < 500:
            route.answers.add()
        body, request_id = route.redactor.body(body), _request_id(item, route, response)
        return Answer(response.status, body, request_id, requested)

    def _unanswered(self, item: Item, route: _Route | None, started: float, error: Exception) -> Ran:
        """What it means for the item that there was no answer to read."""
        match error:
            case urls.InvalidUpstream() | MissingKey():
                return self._unsendable(item, str(error))
            case _TooLarge():
                if self._outages and route is not None:
                    self._reached(route.upstream)
                return Failed(item, failed_line(item, "response_too_large", str(error)))
            case urls.InvalidPath():
                return Failed(item, failed_line(item, "invalid_url", str(error)))
            case ClientClosedError():
                # The worker stops. The attempt stays the same, and so does its Idempotency-Key.
                return Deferred(item)
            case TransportError() | DecodeError() if route is not None:
                if never_left(error):
                    return self._unreached(item, route.upstream, started, reason_of(error))
                if isinstance(error, RequestTimeoutError):
                    return TimedOut(item, code_of(error), reason_of(error), self._delay(item))
                return self._again(item, code_of(error), reason_of(error))
            case _:
                # One item's surprise must not touch its siblings.
                _log.error("request failed unexpectedly", request=item.request_id, exc_info=error)
                message = "The worker failed at this request; its log says why."
                return self._again(item, "internal_error", message)

    def _judge(self, item: Item, route: _Route, started: float, response: Response, body: bytes) -> Verdict:
        status = response.status
        body = route.redactor.body(body)
        if not 200 <= status < 300:
            return self._refused(item, route, started, response, body)
        try:
            embedded, usage = read_answer(body)
        except NotJson as error:
            # Not kept as the response: an error line with a status of 200 would read as a success.
            message = f"The upstream answered {status} with a body that is not JSON: {error}"
            return self._again(item, "invalid_response", message)
        route.answers.add()
        line = answered_line(item, status, _request_id(item, route, response), embedded)
        return Completed(item, status, line, usage)

    def _refused(self, item: Item, route: _Route, started: float, response: Response, body: bytes) -> Verdict:
        status = response.status
        requested = requested_delay(lambda name: _header(response, name), self._now())
        if status == 429:
            self._slow_down(route, started, requested)
        passing = status in _RETRYABLE or status >= 500
        if passing and item.claim.attempt < item.claim.settings.max_attempts:
            return Retry(item, f"http_{status}", message_of(status, body), self._delay(item, requested))
        line = answered_line(item, status, _request_id(item, route, response), as_json(body))
        return Failed(item, line, status)

    def _again(self, item: Item, code: str, message: str) -> Verdict:
        """There is no answer to keep: another attempt, if one is left."""
        message = message[:MAX_MESSAGE]
        if item.claim.attempt < item.claim.settings.max_attempts:
            return Retry(item, code, message, self._delay(item))
        return Failed(item, failed_line(item, code, message))

    def _delay(self, item: Item, requested: float = 0.0) -> float:
        return rounded_up(max(requested, self._settings.retry.delay(item.claim.attempt, self._random)))

    def _unreached(self, item: Item, upstream: str, started: float, reason: str) -> Verdict:
        outage = self._outages.get(upstream)
        if outage is None:
            outage = self._outages[upstream] = Outage(self._settings.connect_retry, self._clock, self._random)
            _log.warning("upstream unreachable", upstream=urls.displayed(upstream), reason=reason)
        return Deferred(item, outage.failed(started, reason))

    async def _may_try(self, upstream: str) -> bool:
        """Wait for the next turn at a limited upstream, or for the next round of an outage.

        Without the latter, items would be claimed, fail to connect and be given back as fast as the machine
        can, and leave a trail of free spans through the whole batch. False: the worker stops, or has lost its
        lease meanwhile, so that somebody else may be sending this item.
        """
        sender = self._fence()
        if (outage := self._outages.get(upstream)) and await self._stops_within(outage.seconds_left):
            return False
        if (pace := self._pace(upstream)) is not None:
            async with pace.line:
                # Asked again after each wait: the rate may have been cut meanwhile.
                while seconds := pace.acquire():
                    if await self._stops_within(seconds):
                        return False
        return sender is not None and self._fence() == sender

    async def _stops_within(self, seconds: float) -> bool:
        """Wait so long, unless the worker stops before."""
        if not seconds:
            return False
        try:
            async with self._timer(seconds):
                return await self._winding_down.wait()
        except TimeoutError:
            return False

    def _pace(self, upstream: str) -> Pace | None:
        pace = self._paces.get(upstream)
        if pace is not None and pace.over:
            pace = None
            del self._paces[upstream]
        return pace

    def _slow_down(self, route: _Route, started: float, requested: float) -> None:
        pace = self._pace(route.upstream)
        if pace is None:
            pace = self._paces[route.upstream] = Pace(route.answers.per_second, self._clock)
            _log.warning("upstream limits the rate", upstream=urls.displayed(route.upstream))
        pace.refused(started, requested)

    def _reached(self, upstream: str) -> None:
        if self._outages.pop(upstream, None) is not None:
            _log.info("upstream reachable again", upstream=urls.displayed(upstream))

    def _unsendable(self, item: Item, reason: str) -> Verdict:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("cannot send", reason=reason)
        return Deferred(item, _UNSENDABLE_DELAY)

    # --- Routes --------------------------------------------------------------------------------------------

    def _route(self, item: Item) -> _Route:
        claim = item.claim
        kind = (claim.settings.upstream, claim.settings.api_key_env, claim.url)
        route = self._routes.get(kind)
        if route is None:
            upstream = claim.settings.upstream or self._upstream
            if upstream is None:
                raise urls.InvalidUpstream("the batch names no upstream, and this worker has no default")
            key = self._key(claim.settings.api_key_env)
            answers = self._answers.setdefault(upstream, AnswerRate(self._clock))
            client, url = self._client(upstream, key), urls.join(upstream, claim.url)
            secrets = [*urls.credentials(upstream), *([key] if key else ())]
            route = _Route(upstream, client, url, answers, Redactor(secrets))
            self._routes[kind] = route
        return route

    def _key(self, variable: str | None) -> str | None:
        """The API key in the variable. None if none is named; one that is named must be there."""
        if variable is None:
            return None
        # A line feed at the end is what reading a key from a file leaves.
        key = self._environ.get(variable, "").strip()
        if not key:
            raise MissingKey(
                f"the environment variable {variable}, which should hold the API key, is not set"
            )
        if not key.isascii() or not key.isprintable():
            raise MissingKey(f"the API key in {variable} has characters that no header can carry")
        return key

    def _client(self, upstream: str, key: str | None) -> Client:
        client = self._clients.get((upstream, key))
        if client is None:
            client = self._clients[upstream, key] = self._new_client(urls.parse(upstream), key)
        return client

    def _new_client(self, upstream: Url, key: str | None) -> Client:
        settings = self._settings
        headers = HeaderMap({"Content-Type": "application/json"})
        if key is not None:
            headers.insert("Authorization", f"Bearer {key}", is_sensitive=True)
        builder = (
            ClientBuilder()
            .http1_only()
            .user_agent(f"batchline/{__version__}")
            .default_headers(headers)
            # A body and its key are sent where the operator said, and nowhere else.
            .follow_redirects(False)
            .connect_timeout(timedelta(seconds=settings.connect_timeout))
            # The pool keeps any number of idle connections: there are never more than were in flight.
            .pool_idle_timeout(timedelta(seconds=settings.idle_timeout))
            .tcp_keepalive(timedelta(seconds=settings.keepalive_after))
            .tcp_keepalive_interval(timedelta(seconds=settings.keepalive_every))
            .tcp_keepalive_retries(settings.keepalive_probes)
        )
        if urls.is_loopback(upstream):
            # A proxy from the environment would look for it on its own machine.
            builder = builder.no_proxy()
        return builder.build()


@lru_cache(maxsize=1024)
def _limit(timeout: float, seconds_left: float) -> timedelta:
    """The time for a request: what its batch allows, and not much past its deadline. Cached since it is the
    same for all items of a claim, and took longer to make than the rest of the request."""
    return timedelta(seconds=min(timeout, max(1.0, seconds_left)))


def _request_id(item: Item, route: _Route, response: Response) -> str:
    """What the upstream calls the request, or what we called it."""
    said = _header(response, "x-request-id")
    return route.redactor.text(said) if said else item.idempotency_key


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:
        # Not text: as good as absent.
        return None
