"""The context of an attempt, which a handler may ask for.

Everything but what is emitted is computed when it is asked for: most handlers ask for little of it.
"""

import threading
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from batchline.model import Item, ids
from batchline.model.emission import PYTHON, Emission
from batchline.operations.codec import TypeMismatch, encoded_key, plain_json
from batchline.operations.errors import InvalidApp, InvalidItem

if TYPE_CHECKING:
    from batchline.operations.operation import PythonOperation


class Stages(Protocol):
    def find(self, name: str) -> "PythonOperation[Any, Any] | None":
        """The operation of this name, if it is known here."""
        ...


class _Done:
    """Emitting never waits, and may be awaited all the same."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class Context:
    """One attempt at an item, or at a chunk of items."""

    __slots__ = ("_cancelled", "_chunk", "_event", "_item", "_log", "_operation", "_stages", "emitted")

    def __init__(
        self,
        item: Item,
        operation: "PythonOperation[Any, Any]",
        stages: Stages,
        chunk: "tuple[Context, ...] | None" = None,
    ) -> None:
        self._item = item
        self._operation = operation
        self._stages = stages
        self._chunk = chunk
        self._cancelled = False
        self._event: threading.Event | None = None
        self._log: Any = None
        # What this attempt has emitted so far.
        self.emitted: list[Emission] | None = None

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._item.claim.attempt

    @property
    def last_attempt(self) -> bool:
        """Whether none follows."""
        claim = self._item.claim
        return claim.attempt - claim.attempts_before >= self._operation.options.max_attempts

    @property
    def batch_id(self) -> str:
        """As of `SubmittedBatch.id`."""
        return ids.show(ids.BATCH, self._item.claim.batch_id)

    @property
    def operation(self) -> str:
        """Its name."""
        return self._operation.name

    @property
    def index(self) -> int:
        """The position among the items of this operation in the batch, from 0."""
        return self._item.ordinal

    @property
    def key(self) -> str:
        """That of the item: its position, unless it was submitted or emitted with another one."""
        return self._item.custom_id.decode()

    @property
    def idempotency_key(self) -> str:
        """The same for the same attempt, also if it runs again after a crash."""
        return self._item.idempotency_key

    @property
    def task_id(self) -> str | None:
        """That of `Parked`, if the handler has returned one."""
        return self._item.claim.task_id

    @property
    def cancelled(self) -> threading.Event:
        """Set when the worker stops waiting for this attempt."""
        if self._event is None:
            self._event = threading.Event()
            # `cancel` looks for the event after it has noted the fact, so one of the two sets it.
            if self._cancelled:
                self._event.set()
        return self._event

    @property
    def log(self) -> Any:
        """A structlog logger with batch, operation, index and attempt."""
        if self._log is None:
            self._log = structlog.get_logger("batchline.handlers").bind(
                batch=self.batch_id, operation=self.operation, index=self.index, attempt=self.attempt
            )
        return self._log

    @property
    def items(self) -> "tuple[Context, ...]":
        """The contexts of the items of a chunk, in order."""
        return (self,) if self._chunk is None else self._chunk

    def emit(
        self, operation: "PythonOperation[Any, Any] | str", item: Any, key: str | None = None
    ) -> Awaitable[None]:
        """Add an item to a later stage, if this attempt completes. Without a key it gets that of this item.

        Raises InvalidApp for an operation that `emits` does not list, and InvalidItem.
        """
        if self._chunk is not None:
            raise InvalidApp("ctx is that of a chunk; call ctx.items[n].emit, which emits for one item")
        name = operation if isinstance(operation, str) else operation.name
        if name not in self._operation.options.emits:
            raise InvalidApp(f"operation {self.operation!r} does not list {name!r} in emits")
        stage = self._stages.find(name) if isinstance(operation, str) else operation
        try:
            body = plain_json(item) if stage is None else stage.codec.encode_item(item)
            custom_id = self._item.custom_id if key is None else encoded_key(key)
        except TypeMismatch as error:
            raise InvalidItem(None, f"emitted to {name!r}: {error}") from error
        if self.emitted is None:
            self.emitted = []
        self.emitted.append(Emission(PYTHON + name, custom_id, body))
        return _DONE

    def cancel(self) -> None:
        """Note that the worker does not wait any more. Called by the worker."""
        self._cancelled = True
        for context in self._chunk or ():
            context.cancel()
        if self._event is not None:
            self._event.set()
