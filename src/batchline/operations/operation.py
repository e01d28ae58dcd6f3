"""A Python function as an operation: a name, options, and the types of its items and results."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

from batchline.model.emission import PYTHON
from batchline.operations.codec import ItemCodec, ItemT, ResultT, UnsupportedType
from batchline.operations.errors import InvalidApp
from batchline.operations.names import checked_name
from batchline.operations.options import (
    BY_BATCH,
    LOOP,
    PROCESS,
    THREAD,
    OperationOptions,
    checked_options,
)
from batchline.operations.signature import signature_of

ArgumentT = TypeVar("ArgumentT")
P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")


class PythonOperation(Generic[ItemT, ResultT]):
    """An operation over items of type ItemT, with results of type ResultT."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: OperationOptions,
        codec: ItemCodec[ItemT, ResultT],
        context: str | None = None,
        context_by_keyword: bool = False,
    ) -> None:
        # Its name, its documentation and its module.
        functools.update_wrapper(cast(Callable[..., Any], self), function)
        self.name = name
        self.function = function
        self.options = options
        self.codec = codec
        self.url = PYTHON + name
        # Whether the function gets the context.
        self.takes_context = context is not None
        # The function with the item and, if it takes one, the context as positional arguments.
        self.handler: Callable[..., Any] = (
            _by_keyword(function, context) if context and context_by_keyword else function
        )
        # `async def`, also if it runs in a process.
        self.is_async = _is_async(function)

    def __repr__(self) -> str:
        return f"<operation {self.name!r}>"


class CallableOperation(PythonOperation[ItemT, ResultT], Generic[ItemT, ResultT, ArgumentT, P, ReturnT]):
    """An operation that can be called like its function. ArgumentT is an item, or a list of them if there
    is a chunk; P are the other parameters; ReturnT is what a call returns: a coroutine if it is async."""

    function: Callable[Concatenate[ArgumentT, P], ReturnT]

    def __call__(self, item: ArgumentT, /, *args: P.args, **keywords: P.kwargs) -> ReturnT:
        """Run the function here and now, without a batch."""
        return self.function(item, *args, **keywords)


AnyOperation: TypeAlias = PythonOperation[Any, Any]


def make_operation(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    max_attempts: int = 5,
    timeout: float | None = 600,
    concurrency: int | None = None,
    run_in: str | None = None,
    chunk: int | None = None,
    emits: Iterable[AnyOperation | str] = (),
    backoff: tuple[float, float] = (0.5, 60),
    collects: AnyOperation | str | None = None,
    by: str = BY_BATCH,
    sink: str | None = None,
    keep_results: bool = True,
) -> CallableOperation[Any, Any, Any, ..., Any]:
    """The operation of a decorated function. Raises InvalidApp."""
    if not callable(function):
        raise InvalidApp(f"an operation is a function, not {function!r}")
    name = checked_name("an operation", function, name)
    try:
        where = _checked_run_in(function, run_in)
        options = checked_options(
            max_attempts=max_attempts,
            timeout=timeout,
            concurrency=concurrency,
            run_in=where,
            chunk=chunk,
            emits=_names(emits),
            backoff=backoff,
            collects=None if collects is None else _name("collects", collects),
            by=by,
            sink=sink,
            keep_results=keep_results,
        )
        return operation_with(function, name, options)
    except (InvalidApp, UnsupportedType) as error:
        raise InvalidApp(f"operation {name!r}: {error}") from error


def check_begins(operation: AnyOperation) -> None:
    """Raises InvalidApp if a batch cannot begin with this operation."""
    if (source := operation.options.collects) is not None:
        raise InvalidApp(
            f"operation {operation.name!r} cannot be submitted: it collects results of {source!r}; submit the"
            " operation that begins the pipeline"
        )


def operation_with(
    function: Callable[..., Any], name: str, options: OperationOptions
) -> CallableOperation[Any, Any, Any, ..., Any]:
    """The operation of a function, with options that were checked. Raises InvalidApp or UnsupportedType."""
    signature = signature_of(function, chunk=options.chunk is not None)
    codec = ItemCodec[Any, Any](signature.item_type, signature.result_type)
    return CallableOperation(name, function, options, codec, signature.context, signature.context_by_keyword)


def _checked_run_in(function: Callable[..., Any], run_in: str | None) -> str:
    is_async = _is_async(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidApp("it is a generator; an operation returns one result")
    if run_in is None:
        return LOOP if is_async else THREAD
    if run_in == LOOP and not is_async:
        raise InvalidApp('run_in="loop" needs an async function; use "thread" or "process"')
    if run_in == THREAD and is_async:
        raise InvalidApp('an async function cannot run in a thread; use "loop" or "process"')
    if run_in == PROCESS:
        _check_importable(function)
    return run_in


def _check_importable(function: Callable[..., Any]) -> None:
    """A child process imports the function by its name."""
    qualname, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if not qualname or not module or "<" in qualname:
        raise InvalidApp('run_in="process" needs a function that is defined at module level')
    main = sys.modules.get("__main__")
    if module == "__main__" and getattr(main, "__file__", None) is None:
        raise InvalidApp(
            'run_in="process" needs a function of a module that can be imported, not of a session'
        )


def _names(emits: Iterable[AnyOperation | str]) -> tuple[str, ...]:
    if isinstance(emits, str):
        raise InvalidApp(f"emits must be a list: emits=[{emits!r}]")
    return tuple(dict.fromkeys(_name("emits", each) for each in emits))


def _name(keyword: str, operation: AnyOperation | str) -> str:
    if isinstance(operation, PythonOperation):
        return operation.name
    if not isinstance(operation, str):
        raise InvalidApp(f"{keyword} takes operations or their names, not {operation!r}")
    return operation


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _by_keyword(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def handler(item: Any, context: Any) -> Any:
        return function(item, **{name: context})

    return handler
