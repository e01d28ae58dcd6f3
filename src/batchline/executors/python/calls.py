"""One call of a handler, for an item or for a chunk of items of one batch.

It is made on the worker's event loop, and run there, in a thread or in a child process. Whatever the handler
does is an outcome of each item. Only a cancellation of the call itself is raised.
"""

from collections.abc import Callable, Sequence
from typing import Any

from batchline.executors.python.outcome import (
    INVALID_ITEM,
    INVALID_RESULT,
    AttemptFailed,
    FailedForGood,
    Outcome,
    cleaned,
    outcome_of,
    outcome_of_error,
)
from batchline.model import Item
from batchline.operations.codec import TypeMismatch
from batchline.operations.context import Context, Stages
from batchline.operations.operation import AnyOperation
from batchline.operations.user_errors import is_cancellation


class HandlerCall:
    def __init__(self, operation: AnyOperation, items: Sequence[Item], stages: Stages) -> None:
        self._operation = operation
        self._items = items
        self._stages = stages
        self._contexts = [Context(item, operation, stages) for item in items]
        # Items that do not match the type of the operation, by their position. The others run.
        self._refused: dict[int, Outcome] = {}
        self._chunk: Context | None = None
        self._cancelled = False

    def run(self) -> list[Outcome]:
        """Call a function that is not async."""
        try:
            arguments = self._arguments()
            return self._merged([] if arguments is None else self._judged(self._handler(*arguments)))
        except BaseException as error:  # noqa: BLE001
            # Also SystemExit: a handler must not end its worker.
            return self._failed(error)

    async def run_async(self) -> list[Outcome]:
        """Await an async function."""
        try:
            arguments = self._arguments()
            return self._merged([] if arguments is None else self._judged(await self._handler(*arguments)))
        except BaseException as error:
            if is_cancellation(error):
                raise
            return self._failed(error)

    def cancel(self) -> None:
        """The worker does not wait for it any more."""
        self._cancelled = True
        for context in self._contexts:
            context.cancel()
        if self._chunk is not None:
            self._chunk.cancel()

    def all(self, outcome: Outcome) -> list[Outcome]:
        """This outcome for every item."""
        return [outcome] * len(self._items)

    @property
    def _handler(self) -> Callable[..., Any]:
        return self._operation.handler

    def _arguments(self) -> tuple[Any, ...] | None:
        """The arguments of the handler; None: there is no item for it."""
        decode = self._operation.codec.decode_item
        values: list[Any] = []
        for position, item in enumerate(self._items):
            try:
                values.append(decode(item.body))
            except TypeMismatch as error:
                self._refused[position] = FailedForGood(INVALID_ITEM, cleaned(str(error)))
        if not values:
            return None
        is_chunk = self._operation.options.chunk is not None
        argument = values if is_chunk else values[0]
        if not self._operation.takes_context:
            return (argument,)
        return (argument, self._chunk_context() if is_chunk else self._contexts[0])

    def _chunk_context(self) -> Context:
        called = self._called()
        self._chunk = Context(self._items[called[0]], self._operation, self._stages, self._at(called))
        # `cancel` looks for this context after it has noted the fact, so one of the two cancels it.
        if self._cancelled:
            self._chunk.cancel()
        return self._chunk

    def _called(self) -> list[int]:
        return [position for position in range(len(self._items)) if position not in self._refused]

    def _at(self, positions: Sequence[int]) -> tuple[Context, ...]:
        return tuple(self._contexts[position] for position in positions)

    def _judged(self, result: Any) -> list[Outcome]:
        contexts = self._at(self._called())
        if self._operation.options.chunk is None:
            return [outcome_of(self._operation, contexts[0], result)]
        if not isinstance(result, list | tuple):
            problem = f"it returned {type(result).__name__}, not a list"
        elif len(result) != len(contexts):
            problem = f"it returned {len(result)} outcomes for {len(contexts)} items"
        else:
            return [
                outcome_of(self._operation, context, each)
                for context, each in zip(contexts, result, strict=True)
            ]
        return [AttemptFailed(INVALID_RESULT, f"The function got a chunk: {problem}.")] * len(contexts)

    def _failed(self, error: BaseException) -> list[Outcome]:
        return self._merged([outcome_of_error(error)] * (len(self._items) - len(self._refused)))

    def _merged(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of items that ran, with those of items that did not, in order."""
        ran = iter(outcomes)
        return [self._refused.get(position) or next(ran) for position in range(len(self._items))]
