"""Callbacks of an app: functions that run after a batch of its operations has ended."""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from batchline.model import Batch, ids
from batchline.model.emission import PYTHON
from batchline.operations.errors import InvalidApp
from batchline.operations.names import checked_name, function_home
from batchline.operations.operation import AnyOperation

# Between the url of an operation and the name of a callback. fan_out_hooks.sql splits there.
_SEPARATOR = "/"


class EndedCounts(msgspec.Struct, frozen=True):
    """Items of a batch that has ended. The other four add up to `total`."""

    total: int
    completed: int
    failed: int
    cancelled: int
    expired: int


class EndedBatch(msgspec.Struct, frozen=True):
    """What a callback gets. `status` is `completed`, `cancelled` or `expired`."""

    id: str
    operation: str
    status: str
    counts: EndedCounts
    metadata: Mapping[str, str]
    # 1 for the first call for this end.
    attempt: int = 1


BatchFunction: TypeAlias = Callable[[EndedBatch], Coroutine[Any, Any, None]]


class BatchCallback(msgspec.Struct, frozen=True):
    """`operation`: only of batches of this one; None: of all operations of the app."""

    name: str
    function: BatchFunction
    operation: str | None = None


class OperationCallback(msgspec.Struct, frozen=True):
    """A callback for batches of one operation."""

    url: str
    callback: BatchCallback

    @property
    def hook(self) -> str:
        """The name under which the database knows it."""
        return f"{self.url}{_SEPARATOR}{self.callback.name}"


def make_callback(
    function: Callable[..., Any], operation: AnyOperation | None = None, *, name: str | None = None
) -> BatchCallback:
    """The callback of a decorated function. Raises InvalidApp."""
    name = checked_name("a callback", function, name)
    if not inspect.iscoroutinefunction(function):
        raise InvalidApp(f"callback {name!r}: its function must be `async def`")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise InvalidApp(
            f"callback {name!r}: its function must have one parameter, the batch: async def {name}(batch)"
        ) from None
    return BatchCallback(name, function, None if operation is None else operation.name)


def ended_batch(batch: Batch, event: str, attempt: int) -> EndedBatch:
    """`event`: the type of the event that the batch has ended. A retry may have opened it again since."""
    counts = batch.counts
    return EndedBatch(
        ids.show(ids.BATCH, batch.id),
        (batch.endpoint or "").removeprefix(PYTHON),
        event.removeprefix("batch."),
        EndedCounts(counts.total, counts.completed, counts.failed, counts.cancelled, counts.expired),
        batch.metadata or {},
        attempt,
    )


class CallbackCatalog:
    """The callbacks of an app, by name."""

    def __init__(self) -> None:
        self._callbacks: dict[str, BatchCallback] = {}

    def __iter__(self) -> Iterator[BatchCallback]:
        return iter(list(self._callbacks.values()))

    def add(self, callback: BatchCallback) -> None:
        """Raises InvalidApp if another function has the name. The same one may be defined again."""
        known = self._callbacks.get(callback.name)
        if known is not None and function_home(known.function) != function_home(callback.function):
            raise InvalidApp(f'there are two callbacks {callback.name!r}; give one another name: name="…"')
        self._callbacks[callback.name] = callback

    def of(self, operations: Iterable[AnyOperation]) -> list[OperationCallback]:
        """Those of these operations."""
        return [
            OperationCallback(operation.url, callback)
            for operation in operations
            for callback in self
            if callback.operation in (None, operation.name)
        ]
