"""`batchline.run`: a model's answer for each row, durable. The same call again continues.

It is `batchline run` for Python: the same templates, rendered in the same watched process, the same batch and
the same worker.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from batchline.app.background import refuse_on_a_loop
from batchline.app.core import AppCore, AppLocation
from batchline.app.errors import translated
from batchline.app.models.row_answers import collected
from batchline.app.models.row_batch import find_or_create
from batchline.app.models.row_encoding import encoded_rows
from batchline.app.models.row_order import RowOrder, RunKeywords, row_order
from batchline.app.models.row_tables import Answers, RowTable, row_table
from batchline.app.models.row_work import work
from batchline.app.runtime import folder_of
from batchline.files.inputs.formats import Format, InputFile, InputLimits
from batchline.files.inputs.input_set import InputSet
from batchline.files.inputs.spool import Spool
from batchline.model import DEFAULT_TENANT
from batchline.store.session import Session

Table = TypeVar("Table")


@overload
async def arun(
    rows: Iterable[str], *, model: str, upstream: str, **keywords: Unpack[RunKeywords]
) -> Answers: ...
@overload
async def arun(
    rows: Iterable[Mapping[str, Any]], *, model: str, upstream: str, **keywords: Unpack[RunKeywords]
) -> list[dict[str, Any]]: ...
@overload
async def arun(rows: Table, *, model: str, upstream: str, **keywords: Unpack[RunKeywords]) -> Table: ...
async def arun(rows: Any, *, model: str, upstream: str, **keywords: Unpack[RunKeywords]) -> Any:
    """The rows with the model's answers. Raises InvalidRow, RunPaused, and ValueError for wrong keywords."""
    table = row_table(rows)
    order, core = row_order(table, model, upstream, keywords), _core(keywords)
    try:
        return await _run(core, table, order)
    finally:
        await core.close()


@overload
def run(rows: Iterable[str], *, model: str, upstream: str, **keywords: Unpack[RunKeywords]) -> Answers: ...
@overload
def run(
    rows: Iterable[Mapping[str, Any]], *, model: str, upstream: str, **keywords: Unpack[RunKeywords]
) -> list[dict[str, Any]]: ...
@overload
def run(rows: Table, *, model: str, upstream: str, **keywords: Unpack[RunKeywords]) -> Table: ...
def run(rows: Any, *, model: str, upstream: str, **keywords: Unpack[RunKeywords]) -> Any:
    """As `arun`, for code without an event loop, and for notebooks."""
    if "ipykernel" not in sys.modules:
        # A notebook has a loop, which waits for the cell anyway.
        refuse_on_a_loop("batchline.run", "await batchline.arun")
    table = row_table(rows)
    order, core = row_order(table, model, upstream, keywords), _core(keywords)
    try:
        return core.background.run(_run(core, table, order))
    finally:
        core.close_blocking()


def _core(keywords: RunKeywords) -> AppCore:
    data_dir = keywords.get("data_dir")
    folder = None if data_dir is None else Path(data_dir)
    return AppCore(AppLocation(keywords.get("database"), folder, None, DEFAULT_TENANT))


async def _run(core: AppCore, table: RowTable, order: RowOrder) -> Any:
    if not len(table):
        return table.answered(order.output, [], [])
    runtime = (await core.opened()).runtime
    with translated():
        async with runtime.kept_running(), Session(runtime.url, "run") as session:
            with Spool(lambda: folder_of(core.location.data_dir) / "spool") as spool:
                path = await asyncio.to_thread(spool.save, encoded_rows(table.rows()))
                file = InputFile("rows", str(path), Format.JSONL)
                inputs = InputSet((file,), order.template, InputLimits(), ())
                batch = await find_or_create(order, runtime, session, inputs)
            if batch.ended_at is None:
                batch = await work(order, runtime, session, batch)
            found = await collected(runtime, session, batch, len(table), order.template.endpoint)
    return table.answered(order.output, found.answers, found.errors)
