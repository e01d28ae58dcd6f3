"""The types of `@app.operation`: what a decorator makes of a function."""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Protocol, overload

from batchline.operations.codec import ItemT, ResultT
from batchline.operations.operation import CallableOperation, P
from batchline.operations.outcomes import Parked


class OperationDecorator(Protocol):
    """`@app.operation(…)`: the function gets one item."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[ItemT, P], Coroutine[Any, Any, ResultT | Parked]], /
    ) -> CallableOperation[ItemT, ResultT, ItemT, P, Coroutine[Any, Any, ResultT]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[ItemT, P], ResultT | Parked], /
    ) -> CallableOperation[ItemT, ResultT, ItemT, P, ResultT]: ...


class ChunkDecorator(Protocol):
    """`@app.operation(chunk=…)`: the function gets a list of items."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[ItemT], P], Coroutine[Any, Any, list[ResultT]]], /
    ) -> CallableOperation[ItemT, ResultT, list[ItemT], P, Coroutine[Any, Any, list[ResultT]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[ItemT], P], list[ResultT]], /
    ) -> CallableOperation[ItemT, ResultT, list[ItemT], P, list[ResultT]]: ...
