"""Verdicts on items by what their upstream answered, or why there was no answer.

What says more about the upstream than about the line uses no attempt. No API key appears in a verdict.
"""

from collections.abc import Callable

import structlog
from pyreqwest.exceptions import ClientClosedError, DecodeError, RequestTimeoutError, TransportError

from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer, usage_in
from batchline.executors.crash_verdict import crashed
from batchline.executors.http_answer import Answer, AnswerStalled, AnswerTooLarge
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retried, TimedOut, Verdict
from batchline.secrets.tracebacks import traceback_of
from batchline.upstreams import urls
from batchline.upstreams.breaker import GATEWAY_ERRORS
from batchline.upstreams.crashes import Fate
from batchline.upstreams.faults import MAX_MESSAGE, code_of, message_of, never_left, reason_of
from batchline.upstreams.http_upstream import HttpUpstream, MissingKey, Route
from batchline.upstreams.retry import Backoff, rounded_up
from batchline.upstreams.spared_lines import SparedLines

# Statuses that may say more about the upstream than about the line.
_SPARED = GATEWAY_ERRORS | {429}
# Somebody on the way has waited too long: the line may still run.
_MAY_RUN = frozenset({408, 504})
# A line that was in flight at a crash comes back after this long, if the upstream seems to be there.
_AFTER_CRASH = 0.5
# An item that this worker cannot send at all comes back after this long: another worker may be set up for it.
_UNSENDABLE_DELAY = 30.0

_log = structlog.get_logger("batchline.http")


class HttpVerdicts:
    """`on_sent` is called with an item that is deferred though its request was sent."""

    def __init__(self, retry: Backoff, random: Callable[[], float], on_sent: Callable[[Item], None]) -> None:
        self._retry = retry
        self._random = random
        self._on_sent = on_sent
        self._spared = SparedLines()
        self._warned: set[str] = set()

    def again(self, item: Item, answer: Answer, message: str) -> Retried:
        """Another attempt after this answer."""
        delay = self.delay(item, answer.requested)
        stays = _stays_with(item, answer.status)
        return Retried(item, f"http_{answer.status}", message[:MAX_MESSAGE], delay, sent_to=stays)

    def judge(self, item: Item, route: Route, answer: Answer) -> Verdict:
        status, body = answer.status, route.redactor.body(answer.body)
        if self._spared.times and status not in _SPARED:
            self._spared.forget(item)
        if not 200 <= status < 300:
            return self._refused(item, route, answer, body)
        try:
            embedded, usage = read_answer(body)
        except NotJson as error:
            # Not kept as the response: an error line with a status of 200 would read as a success.
            message = f"The upstream answered {status} with a body that is not JSON: {error}"
            return self._again(item, "invalid_response", message, answered=True)
        return Completed(item, status, answered_line(item, status, answer.request_id, embedded), usage)

    def _refused(self, item: Item, route: Route, answer: Answer, body: bytes) -> Verdict:
        status = answer.status
        if status in _SPARED and (spared := self._spare(item, route.upstream, answer)) is not None:
            return spared
        if answer.passing and item.claim.attempts_left:
            message, delay = message_of(status, body), self.delay(item, answer.requested)
            stays = _stays_with(item, status)
            return Retried(item, f"http_{status}", message, delay, usage_in(body), sent_to=stays)
        line = answered_line(item, status, answer.request_id, as_json(body))
        return Failed(item, line, status, usage_in(body))

    async def gone(
        self, item: Item, upstream: HttpUpstream, started: float, status: int | None
    ) -> Verdict | None:
        """The verdict on an item whose upstream has crashed or is away. None: the failure is the item's. The
        status is that of an error; None: the connection was lost."""
        if item.claim.settings.provider is not None:
            # A provider may have accepted the item: its executor must know that it was sent.
            return None
        fate = await upstream.fate(item, started, status)
        if fate is Fate.SINGLE:
            return None
        self._on_sent(item)
        delay = max(upstream.rest, _AFTER_CRASH)
        if fate is Fate.AWAY:
            # Without an answer, it may have run.
            return Deferred(item, delay, sent_to=item.claim.stays_with if status is None else None)
        return crashed(item, delay)

    def _spare(self, item: Item, upstream: HttpUpstream, answer: Answer) -> Deferred | None:
        """No attempt is used by a refusal, or by a gateway error of an upstream that seems to be away."""
        if not upstream.excuses(answer.started, answer.status):
            return None
        stays = _stays_with(item, answer.status)
        if upstream.away and answer.status in GATEWAY_ERRORS:
            self._on_sent(item)
            return Deferred(item, max(upstream.rest, _AFTER_CRASH, answer.requested), sent_to=stays)
        times = self._spared.spare(item)
        if not times:
            return None
        self._on_sent(item)
        return Deferred(item, self._longer(item, times, answer.requested), sent_to=stays)

    def lost(
        self, item: Item, upstream: HttpUpstream, started: float, error: TransportError | DecodeError
    ) -> Verdict:
        """The connection was lost, and the upstream has not crashed: the item may have run."""
        if upstream.away:
            self._on_sent(item)
            return Deferred(item, max(upstream.rest, _AFTER_CRASH), sent_to=item.claim.stays_with)
        times = self._spared.spare(item) if upstream.excuses(started, None) else 0
        if not times:
            return self._again(item, code_of(error), reason_of(error))
        self._on_sent(item)
        return Deferred(item, self._longer(item, times), sent_to=item.claim.stays_with)

    def _longer(self, item: Item, times: int, requested: float = 0.0) -> float:
        """The delay of an item that was spared so many times."""
        nth = item.claim.attempt + times - 1
        return rounded_up(max(requested, self._retry.delay(nth, self._random)))

    def unanswered(self, item: Item, route: Route | None, started: float, error: Exception) -> Ran:
        """The verdict on an item for which there was no answer to read."""
        match error:
            case urls.InvalidUpstream() | MissingKey():
                return self._unsendable(item, str(error))
            case AnswerTooLarge():
                if route is not None:
                    route.upstream.reached()
                return Failed(item, failed_line(item, "response_too_large", str(error)))
            case AnswerStalled():
                return self._again(item, "response_stalled", str(error))
            case urls.InvalidPath():
                return Failed(item, failed_line(item, "invalid_url", str(error)))
            case ClientClosedError():
                # The worker stops. The attempt stays the same, and so does its Idempotency-Key.
                return Deferred(item, sent_to=item.claim.stays_with)
            case TransportError() | DecodeError() if route is not None:
                if never_left(error):
                    delay = route.upstream.unreached(started, reason_of(error))
                    # Another upstream may take it at once, if there are several.
                    return Deferred(item, delay if item.claim.sender is None else 0.0)
                if isinstance(error, RequestTimeoutError):
                    return TimedOut(item, code_of(error), reason_of(error), self.delay(item))
                return self._again(item, code_of(error), reason_of(error))
            case _:
                # One item's unexpected error must not affect the others.
                _log.error("request failed unexpectedly", **item.log_fields(), exception=traceback_of(error))
                return self._again(item, "internal_error", "The worker failed at this request; see its log.")

    def _again(self, item: Item, code: str, message: str, *, answered: bool = False) -> Verdict:
        """There is no answer to keep: another attempt, if one is left. Unless it was answered, the upstream
        may still run it, so that it goes to no other."""
        message = message[:MAX_MESSAGE]
        if item.claim.attempts_left:
            sent_to = None if answered else item.claim.stays_with
            return Retried(item, code, message, self.delay(item), sent_to=sent_to)
        return Failed(item, failed_line(item, code, message))

    def _unsendable(self, item: Item, reason: str) -> Verdict:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("cannot send", reason=reason)
        return Deferred(item, _UNSENDABLE_DELAY)

    def delay(self, item: Item, requested: float = 0.0) -> float:
        """Seconds until the item's next attempt."""
        return rounded_up(max(requested, self._retry.delay(item.claim.attempt, self._random)))


def _stays_with(item: Item, status: int) -> str | None:
    """The upstream that a line stays with after this answer; None: any may take it."""
    return item.claim.stays_with if status in _MAY_RUN else None
