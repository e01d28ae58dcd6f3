"""The simulated upstream without HTTP: admits requests, executes each key once, answers its callers.

A request passes these steps: the text that kills the process, the key (executed and running keys are
replayed), the body's validity, the rate limits, the faults, the queue for a slot, the latency. The key comes
before all refusals, because a 429, 500 or 503 means that the request was not executed, which must also be
true for a key whose first answer was lost.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable

from batchline.simulate.answers import padded, render, tokens_of
from batchline.simulate.execution import Execution, Requester
from batchline.simulate.execution_slots import ExecutionSlots
from batchline.simulate.faults import FaultDice, InjectedFault
from batchline.simulate.ledger import Executed, Ledger
from batchline.simulate.load_page import load_page
from batchline.simulate.prefix_cache import prompt_of
from batchline.simulate.rate_limits import RateLimits
from batchline.simulate.recipes import Recipe, RecipeReader, TextRecipe
from batchline.simulate.refusals import Refusal
from batchline.simulate.settings import SimulateSettings
from batchline.simulate.work_time import WorkTime

# What a shell reports of a process that was killed.
_KILLED = 137


class SimulatedUpstream:
    def __init__(
        self,
        settings: SimulateSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._reader = RecipeReader(settings.seed)
        self._dice = FaultDice(settings)
        self._limits = RateLimits(settings, clock)
        self._time = WorkTime(settings)
        self._crash_on = settings.crash_on.encode()
        self._slots = ExecutionSlots(settings, loop, self._start)
        self._forget()

    def reset(self) -> None:
        """Forget all keys and counts. Running requests still end, but are not counted."""
        self._forget()
        self._slots.reset()

    def _forget(self) -> None:
        self.ledger = Ledger(self._settings.max_keys)
        self.ledger.peak_in_flight = self._slots.running
        self._running: dict[bytes, Execution] = {}

    def report(self) -> dict[str, int | dict[int, int]]:
        return self.ledger.report(self._slots.running, self._slots.waiting)

    def load_page(self) -> bytes:
        model = next(iter(self._settings.models), "")
        return load_page(self._settings.metrics, model, self._slots.running, self._slots.waiting)

    def receive(self, caller: Requester, path: bytes, key: bytes | None, body: bytes) -> None:
        """Handle one POST request with its complete body."""
        if self._crash_on and self._crash_on in body:
            # As a process that is killed: all connections are lost, nothing is cleaned up.
            os._exit(_KILLED)
        self.ledger.requests += 1
        self._slots.arrived()
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
        self._check_supported(recipe)
        if self._limits:
            self._limits.admit(tokens_of(recipe))
        match self._dice.throw():
            case None:
                self._execute(self._execution(key, recipe, body, [caller]))
            case InjectedFault.DROP_AFTER:
                self._execute(self._execution(key, recipe, body, [], to_drop=caller))
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

    def _check_supported(self, recipe: Recipe) -> None:
        if self._settings.only_listed and recipe.model not in self._settings.models:
            message = f"The model `{recipe.model}` does not exist."
            raise Refusal(404, message, param="model", code="model_not_found")
        if self._settings.no_response_format and isinstance(recipe, TextRecipe) and recipe.formatted:
            message = "Unrecognized request argument supplied: response_format"
            raise Refusal(400, message, param="response_format")

    def _execution(
        self,
        key: bytes | None,
        recipe: Recipe,
        body: bytes,
        callers: list[Requester],
        to_drop: Requester | None = None,
    ) -> Execution:
        prompt = prompt_of(body) if self._settings.prefix_cache else b""
        record = self._record(key, recipe, body)
        return Execution(self.ledger, key, recipe, record, callers, to_drop, prompt)

    def _record(self, key: bytes | None, recipe: Recipe, body: bytes) -> Executed | None:
        if not self._settings.record:
            return None
        displayed = None if key is None else key.decode("latin-1")
        return Executed(displayed, recipe.path, hashlib.sha256(body).hexdigest())

    def _execute(self, execution: Execution) -> None:
        if self._slots.full:
            if not self._settings.late_refusal_ms:
                raise self._overloaded()
            execution.refused = True
        if execution.key is not None:
            self._running[execution.key] = execution
        self._slots.enter(execution)

    def _overloaded(self) -> Refusal:
        kind = "server_error" if self._settings.refuse_with == 503 else "requests"
        return Refusal(self._settings.refuse_with, "The queue is full. Try again later.", type=kind)

    def _start(self, execution: Execution) -> None:
        self.ledger.peak_in_flight = max(self.ledger.peak_in_flight, self._slots.running)
        if execution.refused:
            self._loop.call_later(self._settings.late_refusal_ms / 1000, self._refuse_late, execution)
        elif self._time.instant:
            self._finish(execution)
        else:
            self._loop.call_later(self._time.start(execution), self._finish, execution)

    def _refuse_late(self, execution: Execution) -> None:
        execution.ledger.refused_late += 1
        self._leave(execution)
        if execution.to_drop is not None:
            execution.to_drop.hang_up()
        refusal = self._overloaded()
        for caller in execution.callers:
            _answer(execution.ledger, caller, refusal.status, refusal.body, refusal.headers)

    def _finish(self, execution: Execution) -> None:
        execution.ledger.enter(execution.key, execution.recipe, execution.record)
        # Before the answers: the next request of a caller must not overtake the queue.
        self._leave(execution)
        if execution.to_drop is not None:
            execution.to_drop.hang_up()
        for caller in execution.callers:
            self._answer_with(execution.ledger, caller, execution.recipe)

    def _leave(self, execution: Execution) -> None:
        if execution.key is not None and self._running.get(execution.key) is execution:
            del self._running[execution.key]
        self._slots.leave(execution)

    def _answer_with(self, ledger: Ledger, caller: Requester, recipe: Recipe) -> None:
        if caller.gone:
            return
        headers = b"x-request-id: req_%b\r\n" % recipe.digest.hex().encode()
        if self._limits:
            headers += self._limits.headers()
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
