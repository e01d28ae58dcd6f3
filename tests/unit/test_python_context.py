"""The context of an attempt: what it says, what it emits, and when it is cancelled."""

import asyncio
import threading
from io import StringIO
from typing import Any

import pytest

from batchline.operations.context import Context
from batchline.operations.errors import InvalidApp, InvalidItem
from batchline.operations.operation import make_operation
from tests.support.python_operations import BATCH, a_catalog, an_item


async def parse(page: str) -> int:
    return len(page)


async def fetch(url: str) -> None: ...


PARSE = make_operation(parse)
FETCH = make_operation(fetch, emits=[PARSE], max_attempts=3)


def a_context(**keywords: Any) -> Context:
    return Context(an_item(FETCH, "http://a", **keywords), FETCH, a_catalog(FETCH, PARSE))


def emissions(context: Context) -> list[tuple[str, bytes, bytes]]:
    return [(each.url, each.custom_id, each.body) for each in context.emitted or ()]


def test_it_says_which_attempt_at_which_item_this_is() -> None:
    context = a_context(index=4, key="Größe", attempt=2, task_id="task-7")
    assert context.batch_id == f"batch_{BATCH.hex}"
    assert (context.operation, context.index, context.key) == ("fetch", 4, "Größe")
    assert (context.attempt, context.last_attempt, context.task_id) == (2, False, "task-7")
    assert context.idempotency_key == f"{BATCH.hex}-5-2"


def test_the_last_attempt_is_that_of_the_operation_and_counts_from_a_retry_of_the_batch() -> None:
    assert a_context(attempt=3).last_attempt
    assert not a_context(attempt=4, attempts_before=3).last_attempt


def test_what_is_emitted_keeps_its_order_and_gets_the_key_of_its_item() -> None:
    context = a_context(key="page-1")

    async def emit() -> None:
        await context.emit(PARSE, "one")
        context.emit("parse", "two", key="own")
        await context.emit(PARSE, "one")

    asyncio.run(emit())
    assert emissions(context) == [
        ("python:parse", b"page-1", b'"one"'),
        ("python:parse", b"own", b'"two"'),
        ("python:parse", b"page-1", b'"one"'),
    ]


def test_only_listed_stages_and_matching_items_can_be_emitted() -> None:
    context = a_context()
    with pytest.raises(InvalidApp, match="operation 'fetch' does not list 'fetch' in emits"):
        context.emit(FETCH, "again")
    with pytest.raises(InvalidItem, match="emitted to 'parse': Expected `str`, got `int`"):
        context.emit("parse", 3)
    with pytest.raises(InvalidItem, match="the key must"):
        context.emit(PARSE, "page", key="a\0")
    assert context.emitted is None


def test_the_context_of_a_chunk_has_one_for_each_item_which_emits_for_it() -> None:
    contexts = (a_context(index=0), a_context(index=1))
    chunk = Context(an_item(FETCH), FETCH, a_catalog(FETCH, PARSE), contexts)
    with pytest.raises(InvalidApp, match=r"ctx.items\[n\].emit"):
        chunk.emit(PARSE, "page")
    chunk.items[1].emit(PARSE, "page")
    assert [len(emissions(each)) for each in chunk.items] == [0, 1]
    assert contexts[0].items == (contexts[0],)


def test_a_cancelled_context_says_so_whenever_it_is_asked() -> None:
    early, late = a_context(), a_context()
    event = early.cancelled
    assert isinstance(event, threading.Event)
    assert not event.is_set()
    for context in (early, late):
        context.cancel()
    assert event.is_set()
    assert late.cancelled.is_set()
    chunk = Context(an_item(FETCH), FETCH, a_catalog(FETCH), (a_context(),))
    chunk.cancel()
    assert chunk.cancelled.is_set()
    assert chunk.items[0].cancelled.is_set()


def test_its_logger_names_the_item(log: StringIO) -> None:
    a_context(index=4, attempt=2).log.warning("odd page", size=3)
    written = log.getvalue()
    for part in ("odd page", f"batch_{BATCH.hex}", "operation=fetch", "index=4", "attempt=2", "size=3"):
        assert part in written
