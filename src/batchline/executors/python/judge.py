"""Makes the verdict on an item from the outcome of its handler, by the attempts that are left."""

import random
from collections.abc import Callable
from time import monotonic

import msgspec
import structlog

from batchline.batches.output import answered_line, failed_line
from batchline.executors.python.outcome import (
    INVALID_RESULT,
    TIMEOUT,
    AttemptFailed,
    FailedForGood,
    Outcome,
    Returned,
    TaskStarted,
)
from batchline.model import Completed, Failed, Item, Retried, TaskParked, Verdict
from batchline.model.failure import MAX_MESSAGE
from batchline.model.sink import SinkRow
from batchline.operations.operation import AnyOperation
from batchline.upstreams.retry import Backoff, rounded_up

# The same error is logged again after so many seconds: a million items may fail alike.
_QUIET = 10.0
_MAX_KNOWN = 1000

_log = structlog.get_logger("batchline.handlers")
_columns_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Judge:
    """Verdicts on the items of one operation. Logs what handlers raise, without messages."""

    def __init__(
        self,
        operation: AnyOperation,
        clock: Callable[[], float] = monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        options = operation.options
        self._name = operation.name
        self._max_attempts = options.max_attempts
        self._sink, self._keep_results = options.sink, options.keep_results
        self._backoff = Backoff(*options.backoff)
        self._clock = clock
        self._random = random
        # When an error was last logged, and how often it was not since.
        self._logged: dict[str, tuple[float, int]] = {}
        self.timed_out = AttemptFailed(
            TIMEOUT, f"The function did not end within {options.timeout or 0:g} s."
        )

    def verdict(self, item: Item, outcome: Outcome) -> Verdict:
        match outcome:
            case Returned():
                return self._completed(item, outcome)
            case AttemptFailed():
                return self._attempt_failed(item, outcome)
            case FailedForGood():
                return Failed(item, failed_line(item, outcome.code, outcome.message))
            case TaskStarted():
                return TaskParked(item, outcome.task_id, outcome.after)

    def _completed(self, item: Item, outcome: Returned) -> Verdict:
        body = outcome.body if self._keep_results else b"null"
        line = answered_line(item, 200, item.request_id, body)
        if self._sink is None:
            return Completed(item, 200, line, emitted=outcome.emitted)
        try:
            columns = _columns_of(outcome.body)
        except msgspec.DecodeError:
            message = f"The result goes to the table {self._sink.name}, so it must have fields."
            return Failed(item, failed_line(item, INVALID_RESULT, message))
        row = SinkRow(self._sink, tuple(columns), outcome.body)
        return Completed(item, 200, line, emitted=outcome.emitted, sink=row)

    def _attempt_failed(self, item: Item, outcome: AttemptFailed) -> Verdict:
        if outcome.trace:
            self._note(item, outcome)
        # Attempts from before the batch was retried do not count.
        nth = item.claim.attempt - item.claim.attempts_before
        if nth >= self._max_attempts:
            return Failed(item, failed_line(item, outcome.code, outcome.message))
        delay = self._backoff.delay(nth, self._random) if outcome.after is None else outcome.after
        return Retried(item, outcome.code, outcome.message[:MAX_MESSAGE], rounded_up(delay) if delay else 0.0)

    def _note(self, item: Item, outcome: AttemptFailed) -> None:
        now = self._clock()
        last, unlogged = self._logged.get(outcome.trace, (None, 0))
        if last is not None and now - last < _QUIET:
            self._logged[outcome.trace] = (last, unlogged + 1)
            return
        if len(self._logged) >= _MAX_KNOWN:
            self._logged.clear()
        self._logged[outcome.trace] = (now, 0)
        more = {"same_before": unlogged} if unlogged else {}
        _log.warning(
            "handler raised", operation=self._name, **item.log_fields(), exception=outcome.trace, **more
        )
