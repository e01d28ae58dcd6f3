"""Schedules and callbacks of an app, as its decorators define them and as its workers need them."""

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, cast, overload

from msgspec.structs import replace

from batchline.app.core import AppCore
from batchline.app.item_blocks import SourceFailed, item_blocks
from batchline.app.submission import PythonSubmission, SubmitKeywords, new_batch, store, submission_of
from batchline.hooks.function import FunctionHook
from batchline.hooks.hook import Hooks
from batchline.model import Batch
from batchline.operations.callbacks import EndedBatch
from batchline.operations.codec import ItemT
from batchline.operations.cron import NEVER
from batchline.operations.errors import InvalidApp
from batchline.operations.operation import AnyOperation
from batchline.operations.schedules import AnySchedule, ScheduledItems
from batchline.store import hooks
from batchline.store.session import InTransaction
from batchline.worker.schedule_runner import AppSchedules, ItemsUnreadable, ScheduledBatch
from batchline.worker.worker import Worker

CallbackT = TypeVar("CallbackT", bound=Callable[[EndedBatch], Coroutine[Any, Any, None]])


class ScheduleKeywords(TypedDict, total=False):
    """The keywords of `submit` that a schedule takes, too."""

    key: Callable[[Any], str] | None
    priority: int
    deadline: float | timedelta | None
    concurrency: int | None
    max_failed: int | str | None
    metadata: Mapping[str, str] | None
    unique: bool
    on_conflict: Literal["raise", "skip"]


class ScheduleDecorator(Protocol, Generic[ItemT]):
    """`@app.schedule(…)`: the function returns items of the operation, or yields them."""

    @overload
    def __call__(
        self, function: Callable[[datetime], AsyncIterable[ItemT]], /
    ) -> Callable[[datetime], AsyncIterable[ItemT]]: ...
    @overload
    def __call__(
        self,
        function: Callable[[datetime], Coroutine[Any, Any, Iterable[ItemT] | AsyncIterable[ItemT] | None]],
        /,
    ) -> Callable[[datetime], Coroutine[Any, Any, Iterable[ItemT] | AsyncIterable[ItemT] | None]]: ...


def check_keywords(schedule: AnySchedule) -> None:
    """Raises InvalidApp if no batch could be submitted with them."""
    for name in schedule.keywords.keys() - ScheduleKeywords.__annotations__.keys():
        raise InvalidApp(f"schedule {schedule.name!r}: there is no keyword {name!r}")
    try:
        # Later stages may be defined after this.
        new_batch(PythonSubmission("", (schedule.operation,), **_named(schedule, NEVER)))
    except (ValueError, TypeError) as error:
        raise InvalidApp(f"schedule {schedule.name!r}: {error}") from error


def app_schedules(core: AppCore, operations: Iterable[AnyOperation]) -> AppSchedules:
    """Those of these operations, for a worker."""
    names = {operation.name for operation in operations}
    chosen = tuple(each for each in core.schedules if each.operation.name in names)
    return AppSchedules(core.location.tenant, chosen, partial(_submit, core))


def callback_hooks(core: AppCore) -> Hooks:
    """The callbacks of all operations, for any worker of the app."""
    return Hooks(tuple(FunctionHook(each) for each in core.callbacks.of(core.catalog)))


async def run_callbacks(core: AppCore, worker: Worker, batch: Batch) -> None:
    """Run the callbacks of a batch that has ended, before its only worker leaves. One that fails is left to
    the next worker of the app."""
    names = [each.hook for each in core.callbacks.of(core.catalog) if each.url == batch.endpoint]
    if names:
        async with core.session() as session:
            await hooks.request(session, names, batch.id)
        worker.hooks.wake()
        await worker.hooks.idle.wait()


async def _submit(
    core: AppCore, session: InTransaction, batch: ScheduledBatch, items: ScheduledItems[Any]
) -> None:
    schedule = batch.schedule
    operation = core.catalog.find(schedule.operation.name) or schedule.operation
    keywords = cast(SubmitKeywords, {**schedule.keywords, **_named(schedule, batch.at)})
    submission = submission_of(core.catalog, core.location.tenant, operation, keywords)
    new = replace(new_batch(submission), id=batch.id, resume_key=batch.resume_key)
    try:
        async with aclosing(item_blocks(operation, items, keywords.get("key"))) as blocks:
            await store(session, submission, new, blocks)
    except SourceFailed as failed:
        raise ItemsUnreadable from failed.error


def _named(schedule: AnySchedule, at: datetime) -> dict[str, Any]:
    """The keywords with the name and the metadata of one batch."""
    given = {name: value for name, value in schedule.keywords.items() if name != "key"}
    metadata = {**(given.get("metadata") or {}), "schedule": schedule.name, "scheduled_at": at.isoformat()}
    return {**given, "name": schedule.name, "metadata": metadata}
