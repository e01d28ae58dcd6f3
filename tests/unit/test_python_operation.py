"""The definition of an operation: its names, options and types, and clear errors for what cannot work."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from batchline.operations.context import Context
from batchline.operations.errors import BatchClosed, BatchlineError, InvalidApp, InvalidItem, ItemFailed
from batchline.operations.operation import make_operation
from batchline.operations.outcomes import Fail, Parked, Retry

if TYPE_CHECKING:
    from batchline.operations.context import Context as OnlyForCheckers


async def square(number: int) -> int:
    """Multiply."""
    return number * number


def double(number: int) -> int:
    return number * 2


def refused(function: Any, **keywords: Any) -> str:
    with pytest.raises(InvalidApp) as error:
        make_operation(function, **keywords)
    return str(error.value)


def test_an_operation_can_be_called_like_its_function() -> None:
    assert asyncio.run(make_operation(square)(3)) == 9
    assert make_operation(double)(3) == 6


def test_an_operation_has_the_name_and_the_documentation_of_its_function() -> None:
    operation = make_operation(square)
    assert (operation.name, operation.url, operation.__doc__) == ("square", "python:square", "Multiply.")
    assert inspect.unwrap(operation) is square
    assert make_operation(square, name="other.name-2").url == "python:other.name-2"


def test_an_async_function_runs_in_the_loop_and_another_one_in_a_thread() -> None:
    assert make_operation(square).options.run_in == "loop"
    assert make_operation(double).options.run_in == "thread"
    assert make_operation(square).options.concurrency == 100
    assert make_operation(double).options.concurrency == 16


def test_concurrency_counts_items_also_with_a_chunk() -> None:
    async def of_many(numbers: list[int]) -> list[int]:
        return numbers

    options = make_operation(of_many, chunk=50).options
    assert (options.concurrency, options.calls) == (5000, 100)
    options = make_operation(of_many, chunk=50, concurrency=120).options
    assert (options.concurrency, options.calls) == (120, 2)
    assert "concurrency counts items" in refused(of_many, chunk=50, concurrency=2)


@pytest.mark.parametrize("name", ["", "Square", "9", "a b", "a" * 64, "ä", "a\n", "a/b"])
def test_a_bad_name_is_refused_with_what_a_name_is(name: str) -> None:
    assert "[a-z][a-z0-9_.-]*" in refused(square, name=name)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 100, not 0"),
        ({"max_attempts": True}, "max_attempts must be"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, or None, not 0"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"chunk": 0}, "chunk must be"),
        ({"run_in": "moon"}, 'run_in must be "loop", "thread" or "process", not \'moon\''),
        ({"backoff": (2, 1)}, "backoff must be two numbers of seconds"),
        ({"backoff": 3}, "backoff must be two numbers of seconds"),
        ({"emits": "parse"}, "emits must be a list: emits=['parse']"),
        ({"emits": [3]}, "emits takes operations or their names, not 3"),
        ({"run_in": "thread"}, "an async function cannot run in a thread"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_allowed(keywords: dict[str, Any], message: str) -> None:
    assert message in refused(square, **keywords)


def test_a_function_that_is_not_async_cannot_run_in_the_loop() -> None:
    assert 'run_in="loop" needs an async function' in refused(double, run_in="loop")


def test_a_process_needs_a_function_at_module_level() -> None:
    def nested(number: int) -> int:
        return number

    assert "defined at module level" in refused(nested, run_in="process")
    assert "defined at module level" in refused(lambda number: number, run_in="process", name="shorthand")
    assert make_operation(double, run_in="process").options.run_in == "process"


def test_a_generator_is_no_operation() -> None:
    def numbers(item: int) -> Iterator[int]:
        yield item

    async def async_numbers(item: int) -> AsyncIterator[int]:
        yield item

    assert "it is a generator" in refused(numbers)
    assert "it is a generator" in refused(async_numbers)


def test_a_callable_without_a_name_needs_one() -> None:
    assert "has no name" in refused(functools.partial(double))
    assert make_operation(functools.partial(double), name="double").name == "double"
    assert "is a function" in refused(3)


# --- Parameters and annotations ----------------------------------------------------------------------------


def no_item() -> int:
    return 1


def only_context(ctx: Context) -> int:
    return 1


def only_keywords(*, number: int) -> int:
    return number


def only_many(*numbers: int) -> int:
    return len(numbers)


@pytest.mark.parametrize("function", [no_item, only_context, only_keywords, only_many])
def test_an_operation_needs_a_parameter_for_the_item(function: Callable[..., Any]) -> None:
    assert "needs a first parameter for the item" in refused(function)


def test_a_parameter_that_gets_no_value_is_refused() -> None:
    def more(number: int, factor: int) -> int:
        return number * factor

    def with_default(number: int, factor: int = 2) -> int:
        return number * factor

    assert "'factor' that gets no value" in refused(more)
    assert not make_operation(with_default).takes_context


def test_the_context_is_the_second_parameter_by_its_name_or_its_annotation() -> None:
    def by_name(item, ctx):  # type: ignore[no-untyped-def]
        return ctx

    def by_annotation(item: int, context: Context) -> None: ...

    def as_text(item: int, context: "Context") -> None: ...

    def for_checkers(item: int, context: "OnlyForCheckers", more: int = 3) -> None: ...

    def by_keyword(item: int, *, ctx: Context) -> Any:
        return item, ctx

    assert all(make_operation(each).takes_context for each in (by_name, by_annotation, as_text, by_keyword))
    assert make_operation(by_keyword).handler(1, "the context") == (1, "the context")
    assert "'context' that gets no value" in refused(for_checkers)


def test_an_annotation_that_cannot_be_resolved_is_named() -> None:
    def of_unknown(item: "Nowhere") -> int:  # type: ignore[name-defined] # noqa: F821
        return 1

    def to_unknown(item: int) -> "Nowhere":  # type: ignore[name-defined] # noqa: F821
        return 1

    assert "the annotation of parameter 'item' of of_unknown cannot be resolved" in refused(of_unknown)
    assert "the annotation of the result of to_unknown cannot be resolved" in refused(to_unknown)


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    def of_complex(item: list[complex]) -> int:
        return 1

    assert "complex cannot be converted to JSON" in refused(of_complex)


def test_outcomes_are_no_part_of_the_type_of_results() -> None:
    def may_park(item: int) -> int | Parked:
        return item

    def only_parks(item: int) -> Parked:
        return Parked("task")

    codec = make_operation(may_park).codec
    assert codec.decode_result(codec.encode_result(3)) == 3
    with pytest.raises(ValueError, match="Expected `int`"):
        codec.encode_result("3")
    assert make_operation(only_parks).codec.encode_result("anything") == b'"anything"'


def test_with_a_chunk_the_types_are_those_of_the_elements() -> None:
    def of_list(items: list[int]) -> list[str | Retry | Fail | Parked]:
        return []

    def of_sequence(items: Sequence[int]) -> Sequence[str]:
        return []

    def of_anything(items, ctx):  # type: ignore[no-untyped-def]
        return items

    def of_one(items: int) -> list[int]:
        return [items]

    for function in (of_list, of_sequence):
        codec = make_operation(function, chunk=3).codec
        assert codec.encode_item(3) == b"3"
        assert codec.encode_result("3") == b'"3"'
        with pytest.raises(ValueError, match="Expected `int`"):
            codec.encode_item("3")
    assert make_operation(of_anything, chunk=3).codec.encode_item({"any": 1}) == b'{"any":1}'
    assert "parameter 'items' must be annotated as a list" in refused(of_one, chunk=3)


# --- Errors and outcomes -----------------------------------------------------------------------------------


def test_errors_say_what_failed_and_survive_pickling() -> None:
    failed = ItemFailed("ValueError", "no", 3, "key")
    assert str(failed) == "item 3 failed with ValueError: no"
    assert str(InvalidItem(3, "Expected `int`")) == "item 3: Expected `int`"
    for error in (failed, InvalidItem(3, "no"), BatchClosed("no"), Retry("r", after=3), Fail("f", code="c")):
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
    assert isinstance(failed, BatchlineError)


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), "3", 1e12])
def test_a_delay_must_be_a_number_of_seconds(after: Any) -> None:
    with pytest.raises(ValueError, match="after must be a number of seconds"):
        Retry("reason", after=after)
    with pytest.raises(ValueError, match="after must be a number of seconds"):
        Parked("task", after=after)


@pytest.mark.parametrize("task_id", ["", "a\0b", "x" * 513, "line\n"])
def test_a_task_has_an_id_that_can_be_stored(task_id: str) -> None:
    with pytest.raises(ValueError, match="task_id must"):
        Parked(task_id)
