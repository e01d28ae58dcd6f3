"""The executor for HTTP: POSTs each item's body to its batch's upstream, and judges the answer.

An item that needs another request than that is sent by `send`, and its caller judges the answer. The executor
assumes that the item is this worker's to run. It guarantees a verdict on every item, whatever the upstream
does, and that no API key appears in a verdict or a log. Answers that take long to check are checked in
threads, so that they do not block the event loop.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from pyreqwest.exceptions import DecodeError, TransportError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import Response

from batchline.batches.output import usage_in
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Fence, no_fence
from batchline.executors.http_answer import MAX_ON_LOOP, Answer, AnswerReader, header_of, redacted, request_id
from batchline.executors.http_request import Order, ordered, post
from batchline.executors.http_verdicts import HttpVerdicts
from batchline.model import NO_USAGE, Completed, Deferred, Failed, Item, Ran, Retried, Usage
from batchline.upstreams import urls
from batchline.upstreams.breaker import GATEWAY_ERRORS
from batchline.upstreams.crashes import CRASH_LIKE
from batchline.upstreams.faults import is_lost
from batchline.upstreams.http_upstream import MissingKey, Route, Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.rate_budgets import Permit
from batchline.upstreams.retry import requested_delay

# Too many requests at once, as far as the status tells.
_BUSY = frozenset({429, 503})

T = TypeVar("T")


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
        self._default = default
        self._memory = memory or BodyMemory(WorkerSettings().body_memory)
        self._largest = min(self._settings.max_body, self._memory.largest)
        self._routes: dict[tuple[str | None, str | None, str], Route] = {}
        # Of requests that count in a budget, by the id of their item.
        self._permits: dict[int, Permit] = {}
        self._fence: Fence = no_fence
        self.answers = AnswerReader(self._memory, self._settings.piece_timeout)
        self.verdicts = HttpVerdicts(self._settings.retry, self._timing.random, self._keep_permit)

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: each item would pay for one more.
        return self._sending(item, post, self._largest, self.verdicts.judge)

    def send(self, item: Item, order: Order) -> Coroutine[Any, Any, Answer | Ran]:
        """Send the item as the order says. A verdict if there was no answer, or none that can be kept."""
        limit = min(self._largest, self._settings.max_operation_body)
        return self._sending(item, partial(ordered, order), limit, redacted)

    def is_away(self, item: Item) -> bool:
        """Whether a request for this item would wait until its upstream is back."""
        try:
            return not self._route(item).upstream.available
        except Exception:  # noqa: BLE001
            # The request fails in the same way, and its verdict says why.
            return False

    def exchange(
        self, item: Item, build: Callable[[Item, Route], RequestBuilder]
    ) -> Coroutine[Any, Any, Answer | Ran]:
        """Send the request that `build` makes. A Deferred says that it was never sent; any other verdict says
        that there was no answer, or none that can be kept."""
        return self._sending(item, build, self._largest, redacted)

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence

    def wind_down(self) -> None:
        self.upstreams.wind_down()

    async def close(self) -> None:
        await self.upstreams.close()
        await self.answers.close()

    def _sending(
        self,
        item: Item,
        build: Callable[[Item, Route], RequestBuilder],
        largest: int,
        judge: Callable[[Item, Route, Answer], T],
    ) -> Coroutine[Any, Any, T | Ran]:
        send = self._budgeted if self.upstreams.budgets else self._exchange
        return send(item, build, largest, judge)

    async def _budgeted(
        self,
        item: Item,
        build: Callable[[Item, Route], RequestBuilder],
        largest: int,
        judge: Callable[[Item, Route, Answer], T],
    ) -> T | Ran:
        """Wait for the budgets that the request counts in, before all that `_exchange` waits for: what that
        has made sure of must hold when the request is sent."""
        try:
            upstream = self._route(item).upstream
        except (urls.InvalidUpstream, urls.InvalidPath, MissingKey):
            return await self._exchange(item, build, largest, judge)
        permit = self.upstreams.budgets.permit(item)
        if not await permit.acquire(upstream.url, self._fence):
            return Deferred(item)
        # What it has waited for its budget is not the upstream's time.
        item.stamps.sent = monotonic()
        self._permits[id(item)] = permit
        try:
            result = await self._exchange(item, build, largest, judge)
        finally:
            del self._permits[id(item)]
        await self._report_use(permit, result)
        return result

    async def _report_use(self, permit: Permit, result: object) -> None:
        """Tell the budgets what the request has used, if that is known."""
        match result:
            case Deferred():
                if not permit.sent:
                    permit.give_back()
            case Completed() if result.usage != NO_USAGE:
                permit.used(_tokens(result.usage))
            case Failed() if result.status_code is not None:
                permit.used(_tokens(result.usage))
            case Retried() if result.error_code.startswith("http_"):
                permit.used(_tokens(result.usage))
            case Answer():
                usage = await self.answers.beside(len(result.body), partial(usage_in, result.body))
                if usage != NO_USAGE or result.status >= 400:
                    permit.used(_tokens(usage))

    def _keep_permit(self, item: Item) -> None:
        """The request was sent, though it is no attempt: its budgets do not get it back."""
        if (permit := self._permits.get(id(item))) is not None:
            permit.sent = True

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
            if upstream.limited or item.claim.crashes:
                if not await upstream.may_send(self._fence, item):
                    return Deferred(item, upstream.rest_of(item))
                # What it has waited for the upstream's pace is not the upstream's time.
                item.stamps.sent = monotonic()
            started = upstream.begin(item)
            builder = build(item, route)
            if (trace := item.trace) is not None:
                trace.upstream = upstream.url
                if upstream.traced:
                    builder = builder.header("traceparent", trace.traceparent)
            # Streamed, because only then the limit holds before memory is full. It costs 1 to 2 µs more.
            request = builder.build_streamed()
            with self._memory.share() as share:
                async with request as response:
                    body = await self.answers.read(response, share, largest)
                # Reading the delay takes 2 µs, and an item that is answered well does not need it.
                delayed = response.status != 200 or judge is redacted
                answer = self._received(item, route, started, response, body, delayed=delayed)
                if answer.status >= 500 and (
                    gone := await self.verdicts.gone(item, upstream, started, answer.status)
                ):
                    return gone
                if len(body) <= MAX_ON_LOOP:
                    return judge(item, route, answer)
                return await self.answers.beside(len(body), partial(judge, item, route, answer))
        except Exception as error:  # noqa: BLE001
            if route is not None and isinstance(error, TransportError | DecodeError) and is_lost(error):
                gone = await self.verdicts.gone(item, route.upstream, started, None)
                return gone or self.verdicts.lost(item, route.upstream, started, error)
            return self.verdicts.unanswered(item, route, started, error)
        finally:
            if route is not None:
                route.upstream.end(item)

    def _received(
        self, item: Item, route: Route, started: float, response: Response, body: bytes, *, delayed: bool
    ) -> Answer:
        """The answer as it came, with the delay that it asks for. Reports it to the upstream."""
        status = response.status
        if self._permits and (permit := self._permits.get(id(item))) is not None:
            permit.answered(partial(header_of, response), self._timing.now())
        requested = requested_delay(partial(header_of, response), self._timing.now()) if delayed else 0.0
        if status in _BUSY and not requested:
            # With a delay, it is about a rate, and fewer requests at once would not help.
            item.stamps.refused = True
        if status == 429:
            route.upstream.refused(started, requested, item.claim.key)
        elif status < 500:
            route.upstream.answered(started)
        elif status not in GATEWAY_ERRORS and status not in CRASH_LIKE:
            route.upstream.reached(started)
        return Answer(status, body, request_id(item, route, response), requested, started)

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


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
