"""The simulated upstream without HTTP: admits requests, executes each key once, answers its callers.

A request passes these steps: the key (executed and running keys are replayed), the body's validity, the rate
limit, the faults, the queue for a slot, the latency. The key comes first, because a 429, 500 or 503 means
that the request was not executed, which must also be true for a key whose first answer was lost.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from batchline.simulate.answers import padded, render
from batchline.simulate.faults import FaultDice, InjectedFault, TokenBucket
from batchline.simulate.ledger import Executed, Ledger
from batchline.simulate.recipes import Recipe, RecipeReader, TextRecipe
from batchline.simulate.refusals import Refusal
from batchline.simulate.settings import SimulateSettings


class Requester(Protocol):
    """The connection that waits for the answer to one request."""

    @property
    def gone(self) -> bool: ...

    def answer(self, status: int, body: bytes, headers: bytes = b"") -> None: ...

    def stream(self, content_type: bytes, chunks: Iterator[bytes], headers: bytes = b"") -> None:
        """Answer 200 with chunks, as fast as they are read."""

    def hang(self) -> None:
        """Never answer."""

    def hang_up(self) -> None:
        """Close the connection without an answer."""


@dataclass(slots=True, eq=False)
class _Execution:
    ledger: Ledger
    key: bytes | None
    recipe: Recipe
    record: Executed | None
    callers: list[Requester]
    to_drop: Requester | None = None


class SimulatedUpstream:
    def __init__(self, settings: SimulateSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._reader = RecipeReader(settings.seed)
        self._dice = FaultDice(settings)
        # A separate sequence, so that jitter does not change which requests fail.
        self._jitter = Random(f"jitter {settings.seed}").random
        self._bucket = TokenBucket(settings.rate_limit, time.monotonic) if settings.rate_limit else None
        self._instant = not (settings.latency_ms or settings.jitter_ms)
        self._in_flight = 0
        self._queue: deque[_Execution] = deque()
        self.reset()

    def reset(self) -> None:
        """Forget all keys and counts. Running requests still end, but are not counted."""
        self.ledger = Ledger(self._settings.max_keys)
        self.ledger.peak_in_flight = self._in_flight
        self._running: dict[bytes, _Execution] = {}

    def report(self) -> dict[str, int | dict[int, int]]:
        return self.ledger.report(self._in_flight)

    def receive(self, caller: Requester, path: bytes, key: bytes | None, body: bytes) -> None:
        """Handle one POST request with its complete body."""
        self.ledger.requests += 1
        if self._settings.keyless:
            key = None
        if key is not None and self._replay(caller, key):
            return
        try:
            self._admit(caller, path, key, body)
        except Refusal as refusal:
            _answer(self.ledger, caller, refusal.status, refusal.body, refusal.headers)

    def _replay(self, caller: Requester, key: bytes) -> bool:
        recipe = self.ledger.recipe_of(key)
        running = self._running.get(key) if recipe is None else None
        if recipe is not None:
            self._answer_with(self.ledger, caller, recipe)
        elif running is not None:
            running.callers.append(caller)
        else:
            return False
        self.ledger.replays += 1
        return True

    def _admit(self, caller: Requester, path: bytes, key: bytes | None, body: bytes) -> None:
        recipe = self._reader.read(path, body)
        if self._settings.only_listed and recipe.model not in self._settings.models:
            message = f"The model `{recipe.model}` does not exist."
            raise Refusal(404, message, param="model", code="model_not_found")
        if self._settings.no_response_format and isinstance(recipe, TextRecipe) and recipe.formatted:
            message = "Unrecognized request argument supplied: response_format"
            raise Refusal(400, message, param="response_format")
        self._check_rate()
        match self._dice.throw():
            case None:
                self._execute(_Execution(self.ledger, key, recipe, self._record(key, recipe, body), [caller]))
            case InjectedFault.DROP_AFTER:
                record = self._record(key, recipe, body)
                self._execute(_Execution(self.ledger, key, recipe, record, [], to_drop=caller))
            case InjectedFault.DROP_BEFORE:
                caller.hang_up()
            case InjectedFault.HANG:
                caller.hang()
            case InjectedFault.ERROR_500:
                raise Refusal(500, "Injected fault: the request was not executed.", type="server_error")
            case InjectedFault.ERROR_503:
                raise Refusal(503, "Injected fault: the server is overloaded.", type="server_error")
            case InjectedFault.REFUSE:
                raise Refusal(429, "Injected fault: too many requests.", type="requests")

    def _check_rate(self) -> None:
        wait_s = self._bucket.wait_s() if self._bucket is not None else 0.0
        if wait_s:
            message = f"Rate limit reached: {self._settings.rate_limit:g} requests per second."
            headers = b"Retry-After: %.3f\r\n" % wait_s
            raise Refusal(429, message, type="requests", code="rate_limit_exceeded", headers=headers)

    def _record(self, key: bytes | None, recipe: Recipe, body: bytes) -> Executed | None:
        if not self._settings.record:
            return None
        displayed = None if key is None else key.decode("latin-1")
        return Executed(displayed, recipe.path, hashlib.sha256(body).hexdigest())

    def _execute(self, execution: _Execution) -> None:
        if execution.key is not None:
            self._running[execution.key] = execution
        if self._settings.concurrency and self._in_flight >= self._settings.concurrency:
            self._queue.append(execution)
        else:
            self._start(execution)

    def _start(self, execution: _Execution) -> None:
        self._in_flight += 1
        self.ledger.peak_in_flight = max(self.ledger.peak_in_flight, self._in_flight)
        if self._instant:
            self._finish(execution)
        else:
            delay_ms = self._settings.latency_ms + self._settings.jitter_ms * self._jitter()
            self._loop.call_later(delay_ms / 1000, self._finish, execution)

    def _finish(self, execution: _Execution) -> None:
        execution.ledger.enter(execution.key, execution.recipe, execution.record)
        if execution.key is not None and self._running.get(execution.key) is execution:
            del self._running[execution.key]
        self._in_flight -= 1
        # Before the answers: the next request of a caller must not overtake the queue.
        self._start_next()
        if execution.to_drop is not None:
            execution.to_drop.hang_up()
        for caller in execution.callers:
            self._answer_with(execution.ledger, caller, execution.recipe)

    def _start_next(self) -> None:
        while self._queue:
            execution = self._queue.popleft()
            if not self._settings.keyless or not all(caller.gone for caller in execution.callers):
                self._start(execution)
                return

    def _answer_with(self, ledger: Ledger, caller: Requester, recipe: Recipe) -> None:
        if caller.gone:
            return
        headers = b"x-request-id: req_%b\r\n" % recipe.digest.hex().encode()
        if self._settings.answer_bytes:
            _count(ledger, 200)
            chunks = padded(self._rendered(recipe), self._settings.answer_bytes)
            caller.stream(b"application/json", chunks, headers)
        else:
            _answer(ledger, caller, 200, self._rendered(recipe), headers)

    def _rendered(self, recipe: Recipe) -> bytes:
        return render(recipe, self._settings.answer, self._settings.bad_answers)


def _answer(ledger: Ledger, caller: Requester, status: int, body: bytes, headers: bytes) -> None:
    if not caller.gone:
        _count(ledger, status)
        caller.answer(status, body, headers)


def _count(ledger: Ledger, status: int) -> None:
    ledger.by_status[status] = ledger.by_status.get(status, 0) + 1
