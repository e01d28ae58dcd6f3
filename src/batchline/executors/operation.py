"""The executor for operations: builds each item's request and judges the answer as the operation defines.

It assumes that the item matched the operation's schema when it was submitted, and no more: an item that
cannot be rendered, an unknown operation and an unexpected answer are verdicts on that item only. No secret of
an item, and nothing that an answer quotes of it, appears in a verdict.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from batchline.batches.output import answered_line, as_json, failed_line
from batchline.config.settings import UpstreamSettings
from batchline.executors.displayed import displayed_result
from batchline.executors.executor import Executor, Fence
from batchline.executors.http import HttpExecutor
from batchline.executors.http_answer import Answer
from batchline.executors.http_request import Order
from batchline.governance.operations import HTTP, Operation, operation_of
from batchline.governance.outcomes import Means
from batchline.governance.registry import Registry
from batchline.governance.templates import InvalidValue, Rendered
from batchline.model import Completed, Deferred, Failed, Item, Ran, RunSettings, Verdict
from batchline.secrets.masking import masked_text
from batchline.secrets.tracebacks import traceback_of
from batchline.upstreams.faults import message_of

# An item that this worker is not set up for comes back after this long: another worker may be.
_ELSEWHERE_DELAY = 30.0
# Up to here an item with its answer is handled on the event loop, in a few milliseconds.
_MAX_ON_LOOP = 4 * 1024
# Larger ones wait for one of these threads.
_THREADS = 2

_log = structlog.get_logger("batchline.operations")
_decode = msgspec.json.Decoder().decode

T = TypeVar("T")

Handler: TypeAlias = Callable[[Operation, Item], Awaitable[Verdict]]
"""Runs the items of an operation that is not a request to an upstream."""


class OperationExecutor:
    """Runs the items of operations, and passes all others to `otherwise`."""

    def __init__(
        self,
        registry: Registry,
        upstreams: Sequence[UpstreamSettings],
        http: HttpExecutor,
        otherwise: Executor,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self._registry = registry
        self._http = http
        self._otherwise = otherwise
        self._handlers = handlers or {}
        named = {upstream.name: upstream for upstream in upstreams}
        self._settings = {
            operation.name: _settings(operation, named[operation.upstream])
            for operation in registry.all()
            if operation.upstream in named
        }
        self._warned: set[str] = set()
        self._threads = ThreadPoolExecutor(_THREADS, "judge")

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: items that are no operations would pay for it.
        name = operation_of(item.claim.url)
        return self._otherwise.run(item) if name is None else self._run(name, item)

    def fenced_by(self, fence: Fence) -> None:
        self._otherwise.fenced_by(fence)

    def wind_down(self) -> None:
        self._otherwise.wind_down()

    async def close(self) -> None:
        await self._otherwise.close()
        await asyncio.to_thread(self._threads.shutdown)

    # --- One item ------------------------------------------------------------------------------------------

    async def _run(self, name: str, item: Item) -> Ran:
        operation = self._registry.find(name)
        if operation is None:
            return self._unknown(name, item)
        try:
            if operation.executor != HTTP:
                return await self._handled(operation, item)
            return await self._requested(operation, item)
        except Exception as error:  # noqa: BLE001
            # One item's unexpected error must not affect the others.
            _log.error(
                "operation failed unexpectedly",
                operation=name,
                **item.log_fields(),
                exception=traceback_of(error),
            )
            message = "The worker failed at this item; see its log."
            return Failed(item, failed_line(item, "internal_error", message))

    def _unknown(self, name: str, item: Item) -> Verdict:
        if not self._registry:
            # A worker without any operations is one for models, and cannot know.
            return self._elsewhere(item, "this worker has no operations")
        return Failed(item, failed_line(item, "unknown_operation", f"There is no operation {name!r}."))

    async def _handled(self, operation: Operation, item: Item) -> Verdict:
        handler = self._handlers.get(operation.executor)
        if handler is None:
            return self._elsewhere(item, f"this worker has no executor {operation.executor!r}")
        return await handler(operation, item)

    async def _requested(self, operation: Operation, item: Item) -> Ran:
        settings = self._settings.get(operation.name)
        if settings is None or operation.request is None:
            return self._elsewhere(item, f"this worker has no upstream {operation.upstream!r}")
        item = replace(item, claim=replace(item.claim, settings=settings))
        try:
            requested, rendered = await self._beside(len(item.body), lambda: _rendered(operation, item))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidValue) as error:
            return Failed(item, failed_line(item, "invalid_item", str(error)))
        answer = await self._http.send(item, _order(rendered))
        if not isinstance(answer, Answer):
            return answer
        judged = await self._judge(operation, item, requested, answer)
        if judged.meaning is Means.SAME:
            return await self._compared(judged, rendered)
        return self._verdict(judged.meaning, judged)

    async def _compared(self, refused: "_Judged", sent: Rendered) -> Ran:
        """The object exists already. If it is the requested one, an earlier attempt has created it, or
        another client."""
        operation, item = refused.operation, refused.item
        answer = await self._http.send(item, _order(operation.confirmation(refused.requested)))
        if not isinstance(answer, Answer):
            return answer
        found = await self._judge(operation, item, refused.requested, answer)
        if answer.status == 404 or answer.passing:
            return self._verdict(Means.RETRY, found)
        size = len(answer.body) + len(sent.body or b"")
        meaning = await self._beside(size, lambda: _comparison(found, sent))
        return self._verdict(meaning, found if meaning is Means.DONE else refused)

    async def _judge(
        self, operation: Operation, item: Item, requested: dict[str, Any], answer: Answer
    ) -> "_Judged":
        size = len(item.body) + len(answer.body)
        return await self._beside(size, lambda: _judged(operation, item, requested, answer))

    async def _beside(self, size: int, act: Callable[[], T]) -> T:
        """The result of `act`, in a thread if the data is large: users decide how large."""
        if size <= _MAX_ON_LOOP:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    def _verdict(self, meaning: Means, judged: "_Judged") -> Verdict:
        item, answer = judged.item, judged.answer
        if meaning is Means.RETRY and item.claim.attempts_left:
            return self._http.verdicts.again(item, answer, judged.message)
        line = answered_line(item, answer.status, answer.request_id, judged.displayed)
        if meaning is Means.DONE:
            return Completed(item, answer.status, line)
        return Failed(item, line, answer.status)

    def _elsewhere(self, item: Item, reason: str) -> Verdict:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("cannot run", reason=reason, operation=operation_of(item.claim.url))
        return Deferred(item, _ELSEWHERE_DELAY)


@dataclass(frozen=True, slots=True)
class _Judged:
    """An answer: its content, its meaning, and the part of it that may be shown."""

    operation: Operation
    item: Item
    requested: dict[str, Any]
    answer: Answer
    said: Any
    meaning: Means
    # As JSON.
    displayed: bytes
    message: str


def _judged(operation: Operation, item: Item, requested: dict[str, Any], answer: Answer) -> _Judged:
    text = as_json(answer.body) if answer.body else b"null"
    said = _decode(text)
    displayed = displayed_result(operation, requested, text, said)
    return _Judged(
        operation,
        item,
        requested,
        answer,
        said,
        operation.meaning(answer.status, requested, said) or _usual(answer),
        displayed,
        masked_text(message_of(answer.status, displayed)),
    )


def _rendered(operation: Operation, item: Item) -> tuple[dict[str, Any], Rendered]:
    requested = _decode(item.body)
    if not isinstance(requested, dict):
        raise InvalidValue("the item is not a JSON object")
    assert operation.request is not None
    return requested, operation.request.render(requested)


def _comparison(found: _Judged, sent: Rendered) -> Means:
    """The meaning of an object that exists already."""
    if found.operation.is_going(found.said):
        return Means.RETRY
    is_answer = 200 <= found.answer.status < 300
    return Means.DONE if is_answer and contains(found.said, _decode(sent.body or b"{}")) else Means.FAILED


def contains(found: Any, wanted: Any) -> bool:
    """Whether `found` includes all of `wanted`; servers add defaults and fields of their own."""
    match wanted:
        case dict():
            return isinstance(found, dict) and all(
                name in found and contains(found[name], each) for name, each in wanted.items()
            )
        case list():
            return (
                isinstance(found, list)
                and len(found) == len(wanted)
                and all(contains(one, other) for one, other in zip(found, wanted, strict=True))
            )
        case _:
            return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _usual(answer: Answer) -> Means:
    """What an answer means if the operation does not say."""
    if 200 <= answer.status < 300:
        return Means.DONE
    return Means.RETRY if answer.passing else Means.FAILED


def _order(rendered: Rendered) -> Order:
    return Order(
        rendered.method,
        rendered.path,
        rendered.query,
        rendered.headers,
        rendered.body,
        rendered.content_type,
    )


def _settings(operation: Operation, upstream: UpstreamSettings) -> RunSettings:
    return RunSettings(upstream.base_url, upstream.api_key_env, operation.max_attempts, operation.timeout)
