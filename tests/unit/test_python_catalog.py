"""The operations of an app: unique names, known stages, no cycles, and stages in their order."""

from collections.abc import Iterable

import pytest

from batchline.operations.catalog import OperationCatalog
from batchline.operations.errors import InvalidApp
from batchline.operations.operation import AnyOperation, make_operation
from tests.support.python_operations import a_catalog


async def noop(item: int) -> None: ...


async def other(item: int) -> None: ...


def importable(item: int) -> int:
    return item


def shadowed(item: int) -> int:
    return item


def an_operation(name: str, emits: Iterable[AnyOperation | str] = ()) -> AnyOperation:
    return make_operation(noop, name=name, emits=emits)


def names(operations: Iterable[AnyOperation]) -> list[str]:
    return [operation.name for operation in operations]


def test_an_operation_is_found_by_its_name_and_its_url() -> None:
    operation = an_operation("parse")
    catalog = a_catalog(operation)
    assert catalog.find("parse") is catalog.find_url("python:parse") is operation
    assert catalog.find("fetch") is catalog.find_url("parse") is None
    assert (list(catalog), len(catalog)) == ([operation], 1)


def test_two_functions_cannot_have_one_name() -> None:
    catalog = a_catalog(make_operation(noop, name="same"))
    with pytest.raises(InvalidApp, match=r"two operations 'same': .*noop and .*other"):
        catalog.add(make_operation(other, name="same"))


def test_a_function_may_be_defined_again() -> None:
    again = an_operation("same")
    catalog = a_catalog(an_operation("same"), again)
    assert catalog.find("same") is again


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(
        InvalidApp, match="operation 'fetch' emits 'parse', which is no operation of this app"
    ):
        a_catalog(an_operation("fetch", ["parse"])).check()


@pytest.mark.parametrize(
    ("links", "cycle"),
    [
        ({"a": ["a"]}, "a → a"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "b → c → b"),
        ({"start": ["a"], "a": ["b"], "b": ["end", "a"], "end": []}, "a → b → a"),
    ],
)
def test_a_cycle_is_named(links: dict[str, list[str]], cycle: str) -> None:
    catalog = a_catalog(*(an_operation(name, emits) for name, emits in links.items()))
    with pytest.raises(InvalidApp, match=f"in a cycle: {cycle}$"):
        catalog.check()


def test_stages_come_once_and_before_those_that_follow_them() -> None:
    store = an_operation("store")
    index = an_operation("index", [store])
    parse = an_operation("parse", [store, "index"])
    fetch = an_operation("fetch", [index, parse])
    catalog = a_catalog(fetch, parse, index, store, an_operation("apart"))
    catalog.check()
    assert names(catalog.stages_of(fetch)) == ["fetch", "parse", "index", "store"]
    assert names(catalog.stages_of(store)) == ["store"]


def test_independent_stages_keep_the_order_in_which_they_are_listed() -> None:
    first, second = an_operation("first"), an_operation("second")
    start = an_operation("start", [first, second])
    assert names(a_catalog(start, second, first).stages_of(start)) == ["start", "first", "second"]


def test_the_function_of_a_process_must_be_found_under_its_name() -> None:
    catalog = a_catalog(make_operation(importable, run_in="process"))
    catalog.check()
    hidden = make_operation(shadowed, run_in="process", name="hidden")
    globals()["shadowed"] = importable
    with pytest.raises(InvalidApp, match="a child process cannot import it"):
        a_catalog(hidden).check()


def test_an_empty_app_is_valid() -> None:
    OperationCatalog().check()


def test_a_stage_that_collects_cannot_be_emitted() -> None:
    parse, merge = an_operation("parse"), make_operation(other, name="merge", collects="parse")
    fetch = an_operation("fetch", ["parse", "merge"])
    with pytest.raises(InvalidApp, match="'fetch' emits 'merge', which collects results of 'parse'"):
        a_catalog(parse, merge, fetch).check()
