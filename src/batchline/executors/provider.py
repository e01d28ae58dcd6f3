"""The executor for asynchronous providers: submits an item, parks it under its task, and collects the result.

It assumes that the item is this worker's to run. It guarantees that an item whose submission may have been
accepted is not submitted again before it was looked up at the provider, and not at all if the provider offers
no lookup and the operator has not chosen to submit it again. Items of other upstreams pass through to HTTP.
"""

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import structlog
from pyreqwest.http import Url
from pyreqwest.request import RequestBuilder

from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer
from batchline.executors.executor import Fence
from batchline.executors.http import HttpExecutor
from batchline.executors.http_answer import Answer
from batchline.executors.http_request import request_limit
from batchline.model import (
    Completed,
    Deferred,
    Failed,
    Item,
    ProviderSettings,
    Ran,
    Recovery,
    Retried,
    SubmissionUnknown,
    TaskParked,
    Verdict,
)
from batchline.secrets.tracebacks import traceback_of
from batchline.upstreams.faults import MAX_MESSAGE, message_of
from batchline.upstreams.http_upstream import Route
from batchline.upstreams.providers import PROVIDERS, Progress, Provider, TaskState, UnsubmittableItem
from batchline.upstreams.retry import rounded_up

# A task is first polled after the shortest delay, then after half of its age.
_SHORTEST = 1.0
_LONGEST = 30.0
# A submission that may be repeated at once, because the provider keeps keys, is repeated after this long.
_AGAIN = 5.0
# An item that is held is looked at this often: the operator may have changed the settings.
_HELD = 300.0
# An item that this worker cannot run comes back after this long: another worker may be set up for it.
_ELSEWHERE = 60.0
# Tasks that the provider does not know are remembered up to this number.
_MAX_MISSING = 100_000

# The provider may have accepted the item before it answered so: it was busy, or a gateway gave up on it.
_UNSURE = frozenset({408, 409})

_log = structlog.get_logger("batchline.provider")


class ProviderExecutor:
    """Runs the items of upstreams that are providers, and passes all others to `http`."""

    def __init__(self, http: HttpExecutor, providers: Mapping[str, Provider] = PROVIDERS) -> None:
        self._http = http
        self._providers = providers
        self._timing = http.upstreams.timing
        # When the provider first and last said that it does not know a task.
        self._missing: dict[str, tuple[float, float]] = {}
        self._warned: set[str] = set()

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: items that are not for a provider would pay for it.
        chosen = item.claim.settings.provider
        if chosen is None and item.claim.task_id is None:
            return self._http.run(item)
        return self._run(item, chosen)

    def fenced_by(self, fence: Fence) -> None:
        self._http.fenced_by(fence)

    def wind_down(self) -> None:
        self._http.wind_down()

    async def cancel(self, item: Item) -> bool:
        """The item's batch has ended: the provider need not finish its task. False: try again later."""
        chosen, task_id = item.claim.settings.provider, item.claim.task_id
        if chosen is None or task_id is None:
            return True
        if self._http.is_away(item):
            # Otherwise it would wait until the provider is back, and so would a worker that drains.
            return False
        answer = await self._http.exchange(item, partial(_cancel, task_id))
        # A task that has ended cannot be cancelled, and one that vanished need not be.
        return isinstance(answer, Answer) and not answer.passing

    async def close(self) -> None:
        await self._http.close()

    async def _run(self, item: Item, chosen: ProviderSettings | None) -> Verdict:
        provider = None if chosen is None else self._providers.get(chosen.name)
        if chosen is None or provider is None:
            return self._elsewhere(item, chosen)
        task_id = item.claim.task_id
        try:
            if task_id is None:
                return await self._submit(item, provider, chosen)
            return await self._collect(item, task_id, provider, chosen)
        except Exception as error:  # noqa: BLE001
            # Another attempt would submit the item a second time.
            _log.error("provider failed unexpectedly", **item.log_fields(), exception=traceback_of(error))
            return self._unknown(item, chosen) if task_id is None else TaskParked(item, task_id, _LONGEST)

    # --- Submitting ----------------------------------------------------------------------------------------

    async def _submit(self, item: Item, provider: Provider, chosen: ProviderSettings) -> Verdict:
        if item.claim.url != provider.path:
            message = f"The provider {chosen.name} runs lines for {provider.path} only."
            return Failed(item, failed_line(item, "invalid_url", message))
        if item.claim.submission is not None:
            recovered = await self._recover(item, provider, chosen)
            if recovered is not None:
                return recovered
        try:
            body = provider.submission(item.idempotency_key, item.body)
        except UnsubmittableItem as error:
            return Failed(item, failed_line(item, "invalid_body", str(error)[:MAX_MESSAGE]))
        answer = await self._http.exchange(item, partial(_post, body))
        if isinstance(answer, Deferred):
            # It was never sent.
            return answer
        if not isinstance(answer, Answer) or answer.status >= 500 or answer.status in _UNSURE:
            return self._unknown(item, chosen)
        if 200 <= answer.status < 300:
            try:
                task_id = provider.accepted(answer.body)
            except ValueError as error:
                return Failed(item, failed_line(item, "invalid_task_id", str(error)[:MAX_MESSAGE]))
            return self._unknown(item, chosen) if task_id is None else TaskParked(item, task_id, _SHORTEST)
        return self._refused(item, answer, chosen)

    async def _recover(self, item: Item, provider: Provider, chosen: ProviderSettings) -> Verdict | None:
        """Decide about an item that the provider may have accepted before; None: submit it."""
        if chosen.recovery is Recovery.HOLD:
            self._warn(
                "items are held: the provider may have accepted them, and offers no lookup",
                provider=chosen.name,
            )
            return self._unknown(item, chosen)
        if chosen.recovery is not Recovery.METADATA:
            return None
        if not provider.carries_key(item.body):
            self._warn("items are held: their metadata has no room for the key", provider=chosen.name)
            return SubmissionUnknown(item, _HELD)
        key = item.idempotency_key
        answer = await self._http.exchange(item, partial(_get, provider.search(key), ""))
        if not isinstance(answer, Answer) or answer.status != 200:
            return self._unknown(item, chosen)
        try:
            task_id = provider.found(key, answer.body)
        except ValueError as error:
            self._warn("the provider cannot be searched", provider=chosen.name, reason=str(error))
            return self._unknown(item, chosen)
        if task_id is not None:
            return TaskParked(item, task_id, 0.0)
        # The submission of a lost worker may still be on its way: look a second time, later.
        return self._unknown(item, chosen) if item.claim.submission == "interrupted" else None

    def _unknown(self, item: Item, chosen: ProviderSettings) -> Verdict:
        match chosen.recovery:
            case Recovery.HOLD:
                delay = _HELD
            case Recovery.METADATA:
                delay = chosen.recheck
            case Recovery.KEY | Recovery.RESUBMIT:
                delay = min(_AGAIN, chosen.recheck)
        return SubmissionUnknown(item, delay)

    def _refused(self, item: Item, answer: Answer, chosen: ProviderSettings) -> Verdict:
        """The provider did not accept it."""
        if answer.passing:
            if item.claim.submission is not None:
                # Another attempt would have another key, and this key may have a task.
                return SubmissionUnknown(item, max(answer.requested, min(_AGAIN, chosen.recheck)))
            if item.claim.attempts_left:
                return self._http.verdicts.again(item, answer, message_of(answer.status, answer.body))
        line = answered_line(item, answer.status, answer.request_id, as_json(answer.body))
        return Failed(item, line, answer.status)

    # --- Collecting ----------------------------------------------------------------------------------------

    async def _collect(
        self, item: Item, task_id: str, provider: Provider, chosen: ProviderSettings
    ) -> Verdict:
        answer = await self._http.exchange(item, partial(_get, "", "/" + task_id))
        if isinstance(answer, Failed):
            # The result is there, and too large to be kept.
            return answer
        if not isinstance(answer, Answer):
            return TaskParked(item, task_id, answer.delay if isinstance(answer, Deferred) else _LONGEST)
        if answer.status == 404:
            return self._vanished(item, task_id, chosen)
        self._missing.pop(task_id, None)
        size, state = len(answer.body), None
        if answer.status == 200:
            state = await self._http.answers.beside(size, partial(provider.state, answer.body))
        if state is None:
            self._warn("the provider does not say how a task is", provider=chosen.name, status=answer.status)
            return TaskParked(
                item, task_id, max(answer.requested, _SHORTEST if answer.status == 429 else _LONGEST)
            )
        match state.progress:
            case Progress.RUNNING:
                return TaskParked(item, task_id, self._next(state))
            case Progress.SUCCEEDED:
                return await self._http.answers.beside(size, partial(_succeeded, item, answer))
            case Progress.FAILED:
                return self._failed(item, state)

    def _next(self, state: TaskState) -> float:
        """When to poll again: tasks that have run for long are polled less often."""
        age = 0.0 if state.created_at is None else self._timing.now() - state.created_at
        return rounded_up(min(max(age / 2, _SHORTEST), _LONGEST))

    def _vanished(self, item: Item, task_id: str, chosen: ProviderSettings) -> Verdict:
        """The provider does not know its task. It may not know it yet, or it has lost it."""
        now = self._timing.clock()
        if len(self._missing) >= _MAX_MISSING:
            self._missing.clear()
        first, last = self._missing.get(task_id, (now, now))
        if now - last > 2 * max(_LONGEST, chosen.recheck):
            # Another worker may have found the task meanwhile.
            first = now
        self._missing[task_id] = (first, now)
        if now - first < chosen.recheck:
            return TaskParked(item, task_id, rounded_up(min(chosen.recheck, _LONGEST)))
        del self._missing[task_id]
        message = f"The provider has lost task {task_id}."
        return self._failed(item, TaskState(Progress.FAILED, None, "task_vanished", message, passing=True))

    def _failed(self, item: Item, state: TaskState) -> Verdict:
        message = state.message[:MAX_MESSAGE]
        if state.passing and item.claim.attempts_left:
            return Retried(item, state.code, message, self._http.verdicts.delay(item))
        return Failed(item, failed_line(item, state.code, message))

    def _elsewhere(self, item: Item, chosen: ProviderSettings | None) -> Verdict:
        reason = "no provider is set for an item with a task" if chosen is None else "unknown provider"
        self._warn(reason, provider=None if chosen is None else chosen.name)
        return Deferred(item, _ELSEWHERE)

    def _warn(self, event: str, **more: object) -> None:
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, **more)


def _succeeded(item: Item, answer: Answer) -> Verdict:
    try:
        embedded, usage = read_answer(answer.body)
    except NotJson as error:
        return Failed(item, failed_line(item, "invalid_response", str(error)[:MAX_MESSAGE]))
    return Completed(item, 200, answered_line(item, 200, answer.request_id, embedded), usage)


def _post(body: bytes, item: Item, route: Route) -> RequestBuilder:
    return _limited(route.client.post(route.url), item).body_bytes(body)


def _get(query: str, below: str, item: Item, route: Route) -> RequestBuilder:
    url: Url = route.url.with_path(route.url.path + below)
    return _limited(route.client.get(url.with_query_string(query) if query else url), item)


def _cancel(task_id: str, item: Item, route: Route) -> RequestBuilder:
    url: Url = route.url.with_path(f"{route.url.path}/{task_id}/cancel")
    return _limited(route.client.post(url), item)


def _limited(request: RequestBuilder, item: Item) -> RequestBuilder:
    return request.header("Idempotency-Key", item.idempotency_key).timeout(request_limit(item))
