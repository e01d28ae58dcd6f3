"""The executor for HTTP: POSTs each item's body to its batch's upstream, and judges the answer.

An item that needs another request than that is sent by `send`, and its caller judges the answer. The executor
assumes that the item is this worker's to run. It guarantees a verdict on every item, whatever the upstream
does, and that no API key appears in a verdict or a log. Answers that take long to check are checked in
threads, so that they do not block the event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache, partial
from time import monotonic
from typing import Any, TypeVar

import msgspec
import structlog
from pyreqwest.bytes import Bytes
from pyreqwest.exceptions import ClientClosedError, DecodeError, RequestTimeoutError, TransportError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import Response

from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer, usage_in
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Fence, no_fence
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retried, TimedOut, Verdict
from batchline.secrets.tracebacks import traceback_of
from batchline.upstreams import urls
from batchline.upstreams.faults import MAX_MESSAGE, code_of, message_of, never_left, reason_of
from batchline.upstreams.http_upstream import MissingKey, Route, Upstreams
from batchline.upstreams.memory import STEP, BodyMemory, Share
from batchline.upstreams.retry import requested_delay, rounded_up

_RETRYABLE = frozenset({408, 409, 425, 429})
# An item that this worker cannot send at all comes back after this long: another worker may be set up for it.
_UNSENDABLE_DELAY = 30.0
# Up to this size an answer is checked on the event loop, in less than 10 ms even if it must be mended.
_MAX_ON_LOOP = 64 * 1024
# Larger ones wait for one of these threads.
_THREADS = 2

_log = structlog.get_logger("batchline.http")

T = TypeVar("T")


class Order(msgspec.Struct, frozen=True):
    """A request that is not simply a POST of the item. The path and the query are percent-encoded already."""

    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"


class Answer(msgspec.Struct, frozen=True):
    """An upstream's answer, from `send` without the API key that it may quote. It asks to wait `requested`
    seconds."""

    status: int
    body: bytes
    request_id: str
    requested: float = 0.0

    @property
    def passing(self) -> bool:
        """The same request may be answered differently next time."""
        return _is_passing(self.status)


class _TooLarge(Exception):
    """The answer is longer than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The upstream's answer exceeds {limit} bytes.")


class _Stalled(Exception):
    """The answer comes so slowly that it would hold its memory for too long."""

    def __init__(self, received: int, seconds: float) -> None:
        super().__init__(
            f"The upstream's answer came too slowly: after {received} bytes, the next MiB took more than"
            f" {seconds:g} s."
        )


class HttpExecutor:
    """`default` is the URL of the upstream for batches that name none."""

    def __init__(
        self,
        upstreams: Upstreams | None = None,
        *,
        default: str | None = None,
        memory: BodyMemory | None = None,
    ) -> None:
        self.upstreams = upstreams or Upstreams()
        self._settings = self.upstreams.settings
        self._timing = self.upstreams.timing
        self._clock = self._timing.clock
        self._default = default
        self._memory = memory or BodyMemory(WorkerSettings().body_memory)
        self._largest = min(self._settings.max_body, self._memory.largest)
        self._routes: dict[tuple[str | None, str | None, str], Route] = {}
        self._warned: set[str] = set()
        self._fence: Fence = no_fence
        self._threads = ThreadPoolExecutor(_THREADS, "answers")

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: each item would pay for one more.
        return self._exchange(item, _post, self._largest, self._judge)

    def send(self, item: Item, order: Order) -> Coroutine[Any, Any, Answer | Ran]:
        """Send the item as the order says. A verdict if there was no answer, or none that can be kept."""
        limit = min(self._largest, self._settings.max_operation_body)
        return self._exchange(item, partial(_ordered, order), limit, _redacted)

    def exchange(
        self, item: Item, build: Callable[[Item, Route], RequestBuilder]
    ) -> Coroutine[Any, Any, Answer | Ran]:
        """Send the request that `build` makes. A Deferred says that it was never sent; any other verdict says
        that there was no answer, or none that can be kept."""
        return self._exchange(item, build, self._largest, _redacted)

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence

    def wind_down(self) -> None:
        self.upstreams.wind_down()

    async def close(self) -> None:
        await self.upstreams.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def _exchange(
        self,
        item: Item,
        build: Callable[[Item, Route], RequestBuilder],
        largest: int,
        judge: Callable[[Item, Route, Answer], T],
    ) -> T | Ran:
        """One request and its answer, as `judge` understands it. `judge` may run in a thread."""
        route, started = None, 0.0
        try:
            route = self._route(item)
            upstream = route.upstream
            if upstream.limited:
                if not await upstream.may_send(self._fence):
                    return Deferred(item)
                # What it has waited for the upstream's pace is not the upstream's time.
                item.stamps.sent = monotonic()
            started = upstream.sent[id(item)] = self._clock()
            builder = build(item, route)
            if (trace := item.trace) is not None:
                trace.upstream = upstream.url
                if upstream.traced:
                    builder = builder.header("traceparent", trace.traceparent)
            # Streamed, because only then the limit holds before memory is full. It costs 1 to 2 µs more.
            request = builder.build_streamed()
            with self._memory.share() as share:
                async with request as response:
                    body = await self._read(response, share, largest)
                if upstream.limited:
                    upstream.reached()
                # Reading the delay takes 2 µs, and an item that is answered well does not need it.
                delayed = response.status != 200 or judge is _redacted
                answer = self._received(item, route, started, response, body, delayed=delayed)
                if len(body) <= _MAX_ON_LOOP:
                    return judge(item, route, answer)
                return await self.beside(len(body), partial(judge, item, route, answer))
        except Exception as error:  # noqa: BLE001
            return self._unanswered(item, route, started, error)
        finally:
            if route is not None:
                route.upstream.sent.pop(id(item), None)

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
            try:
                async with asyncio.timeout(self._settings.piece_timeout):
                    piece = await reader.read(step)
            except TimeoutError:
                raise _Stalled(size, self._settings.piece_timeout) from None
            if piece is None:
                return await self.beside(size, partial(_joined, pieces))
            pieces.append(piece)
            size += len(piece)
        raise _TooLarge(limit)

    def _received(
        self, item: Item, route: Route, started: float, response: Response, body: bytes, *, delayed: bool
    ) -> Answer:
        """The answer as it came, with the delay that it asks for. Reports it to the upstream."""
        status = response.status
        requested = requested_delay(partial(_header, response), self._timing.now()) if delayed else 0.0
        if status == 429:
            route.upstream.refused(started, requested)
        elif status < 500:
            route.upstream.answered(started)
        return Answer(status, body, _request_id(item, route, response), requested)

    async def beside(self, size: int, act: Callable[[], T]) -> T:
        """The result of `act` on so many bytes. It takes long for many, and then runs in a thread."""
        if size <= _MAX_ON_LOOP:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    def _route(self, item: Item) -> Route:
        claim = item.claim
        kind = (claim.settings.upstream, claim.settings.api_key_env, claim.url)
        route = self._routes.get(kind)
        if route is None:
            url = claim.settings.upstream or self._default
            if url is None:
                raise urls.InvalidUpstream("the batch names no upstream, and this worker has no default")
            route = self.upstreams.get(url).route(claim.url, claim.settings.api_key_env)
            self._routes[kind] = route
        return route

    # --- Verdicts ------------------------------------------------------------------------------------------

    def again(self, item: Item, answer: Answer, message: str) -> Retried:
        """Another attempt after this answer."""
        delay = self.delay(item, answer.requested)
        return Retried(item, f"http_{answer.status}", message[:MAX_MESSAGE], delay)

    def _judge(self, item: Item, route: Route, answer: Answer) -> Verdict:
        status, body = answer.status, route.redactor.body(answer.body)
        if not 200 <= status < 300:
            return self._refused(item, answer, body)
        try:
            embedded, usage = read_answer(body)
        except NotJson as error:
            # Not kept as the response: an error line with a status of 200 would read as a success.
            message = f"The upstream answered {status} with a body that is not JSON: {error}"
            return self._again(item, "invalid_response", message)
        return Completed(item, status, answered_line(item, status, answer.request_id, embedded), usage)

    def _refused(self, item: Item, answer: Answer, body: bytes) -> Verdict:
        status = answer.status
        if answer.passing and item.claim.attempts_left:
            message, delay = message_of(status, body), self.delay(item, answer.requested)
            return Retried(item, f"http_{status}", message, delay, usage_in(body))
        line = answered_line(item, status, answer.request_id, as_json(body))
        return Failed(item, line, status, usage_in(body))

    def _unanswered(self, item: Item, route: Route | None, started: float, error: Exception) -> Ran:
        """The verdict on an item for which there was no answer to read."""
        match error:
            case urls.InvalidUpstream() | MissingKey():
                return self._unsendable(item, str(error))
            case _TooLarge():
                if route is not None:
                    route.upstream.reached()
                return Failed(item, failed_line(item, "response_too_large", str(error)))
            case _Stalled():
                return self._again(item, "response_stalled", str(error))
            case urls.InvalidPath():
                return Failed(item, failed_line(item, "invalid_url", str(error)))
            case ClientClosedError():
                # The worker stops. The attempt stays the same, and so does its Idempotency-Key.
                return Deferred(item)
            case TransportError() | DecodeError() if route is not None:
                if never_left(error):
                    return Deferred(item, route.upstream.unreached(started, reason_of(error)))
                if isinstance(error, RequestTimeoutError):
                    return TimedOut(item, code_of(error), reason_of(error), self.delay(item))
                return self._again(item, code_of(error), reason_of(error))
            case _:
                # One item's unexpected error must not affect the others.
                _log.error("request failed unexpectedly", **item.log_fields(), exception=traceback_of(error))
                return self._again(item, "internal_error", "The worker failed at this request; see its log.")

    def _again(self, item: Item, code: str, message: str) -> Verdict:
        """There is no answer to keep: another attempt, if one is left."""
        message = message[:MAX_MESSAGE]
        if item.claim.attempts_left:
            return Retried(item, code, message, self.delay(item))
        return Failed(item, failed_line(item, code, message))

    def _unsendable(self, item: Item, reason: str) -> Verdict:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("cannot send", reason=reason)
        return Deferred(item, _UNSENDABLE_DELAY)

    def delay(self, item: Item, requested: float = 0.0) -> float:
        """Seconds until the item's next attempt."""
        return rounded_up(max(requested, self._settings.retry.delay(item.claim.attempt, self._timing.random)))


def _post(item: Item, route: Route) -> RequestBuilder:
    return (
        route.client.post(route.url)
        .header("Idempotency-Key", item.idempotency_key)
        .timeout(request_limit(item))
        .body_bytes(item.body)
    )


def _ordered(order: Order, item: Item, route: Route) -> RequestBuilder:
    url = urls.below(route.upstream.url, order.path)
    builder = (
        route.client.request(order.method, url.with_query_string(order.query) if order.query else url)
        .header("Idempotency-Key", item.idempotency_key)
        .timeout(request_limit(item))
    )
    for name, value in order.headers:
        builder = builder.header(name, value)
    if order.body is None:
        return builder
    return builder.header("Content-Type", order.content_type).body_bytes(order.body)


def request_limit(item: Item) -> timedelta:
    return _limit(item.claim.settings.timeout, item.claim.seconds_left)


@lru_cache(maxsize=1024)
def _limit(timeout: float, seconds_left: float) -> timedelta:
    """The time for a request: what its batch allows, and not much past its deadline. Cached since it is the
    same for all items of a claim, and took longer to make than the rest of the request."""
    return timedelta(seconds=min(timeout, max(1.0, seconds_left)))


def _joined(pieces: list[Bytes]) -> bytes:
    """The whole body. Empties the list: to free many pieces takes long, too."""
    body = b"".join(pieces)
    pieces.clear()
    return body


def _redacted(item: Item, route: Route, answer: Answer) -> Answer:
    return Answer(answer.status, route.redactor.body(answer.body), answer.request_id, answer.requested)


def _is_passing(status: int) -> bool:
    return status in _RETRYABLE or status >= 500


def _request_id(item: Item, route: Route, response: Response) -> str:
    """What the upstream calls the request, or what we called it."""
    said = _header(response, "x-request-id")
    return route.redactor.text(said) if said else item.idempotency_key


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:
        # Not text: as good as absent.
        return None
