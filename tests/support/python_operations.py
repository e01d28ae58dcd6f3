"""Python operations for tests: items, an executor that runs them, and its verdicts."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from batchline.executors.executor import Executor
from batchline.executors.python import PythonExecutor
from batchline.model import Claim, Completed, Failed, Item, Ran, RunSettings
from batchline.operations.catalog import OperationCatalog
from batchline.operations.operation import AnyOperation, make_operation

BATCH = UUID("0198c0de-0000-7000-8000-000000000001")


def an_item(
    operation: AnyOperation | str,
    value: Any = 1,
    *,
    index: int = 0,
    key: str = "key",
    attempt: int = 1,
    attempts_before: int = 0,
    task_id: str | None = None,
    losses: int = 0,
    batch_id: UUID = BATCH,
) -> Item:
    """An item with this value. The batch allows another number of attempts than any operation."""
    url = operation if isinstance(operation, str) else operation.url
    settings = RunSettings(max_attempts=77)
    claim = Claim(
        1,
        1,
        batch_id,
        attempt,
        task_id,
        1,
        url,
        url,
        url,
        1000.0,
        settings,
        attempts_before=attempts_before,
        losses=losses,
    )
    return Item(claim, index, index + 1, key.encode(), json.dumps(value).encode())


def a_catalog(*operations: AnyOperation) -> OperationCatalog:
    catalog = OperationCatalog()
    for operation in operations:
        catalog.add(operation)
    return catalog


@asynccontextmanager
async def executing(
    *operations: AnyOperation, otherwise: Executor | None = None
) -> AsyncIterator[PythonExecutor]:
    executor = PythonExecutor(a_catalog(*operations), otherwise)
    try:
        yield executor
    finally:
        await executor.close()


async def verdict_on(function: Callable[..., Any], value: Any = 1, **keywords: Any) -> Ran:
    """The verdict on one item of a function; keywords of the operation and of the item."""
    names = ("index", "key", "attempt", "attempts_before", "task_id", "losses")
    about_item = {name: keywords.pop(name) for name in names if name in keywords}
    operation = make_operation(function, **keywords)
    async with executing(operation) as executor:
        return await executor.run(an_item(operation, value, **about_item))


def result_of(verdict: Ran) -> Any:
    """The value that the handler returned."""
    assert isinstance(verdict, Completed), f"expected a result, got {verdict}"
    return json.loads(verdict.output)["response"]["body"]


def error_of(verdict: Ran) -> tuple[str, str]:
    """The code and the message of an item that has failed for good."""
    assert isinstance(verdict, Failed), f"expected a failure, got {verdict}"
    error = json.loads(verdict.output)["error"]
    return error["code"], error["message"]


def emitted_by(verdict: Ran) -> Sequence[tuple[str, str, Any]]:
    """Stage, key and value of what was emitted."""
    assert isinstance(verdict, Completed), f"expected a result, got {verdict}"
    return [
        (each.url.removeprefix("python:"), each.custom_id.decode(), json.loads(each.body))
        for each in verdict.emitted
    ]
