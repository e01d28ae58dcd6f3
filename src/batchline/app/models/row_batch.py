"""The batch of a `run` over rows: that of an earlier call over the same rows, or a new one."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

from batchline.app.models.row_encoding import InvalidRow
from batchline.app.models.row_order import RowOrder
from batchline.app.runtime import Runtime
from batchline.batches import creation, reuse
from batchline.batches.retry import BatchGone, NotRetryable, retry
from batchline.files.ingest import FileRefused, Fingerprint, InputUnreadable, ingest
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.input_set import InputSet
from batchline.files.parsing import ReadingRules
from batchline.model import DEFAULT_TENANT, Batch, RetrySelection
from batchline.operations.errors import BatchlineError
from batchline.store import batches, files
from batchline.store.session import Session
from batchline.upstreams.http_upstream import Upstreams

# Options of the command line, as messages about templates name them.
_OPTION = re.compile(r"--(?=(prompt|system|model)\b)")


async def find_or_create(order: RowOrder, runtime: Runtime, session: Session, inputs: InputSet) -> Batch:
    """Raises InvalidRow and BatchlineError."""
    with _explained():
        known = await asyncio.to_thread(inputs.fingerprint)
        key = creation.resume_key(known.digest, order.settings.upstream or "", order.settings.answers)
        found = None if order.fresh else await batches.find(session, DEFAULT_TENANT, key)
        if found is not None and _is_done(order, found):
            return found
        await _check_upstream(order)
        if found is not None:
            return await _continued(order, session, found)
        if order.fresh:
            await batches.retire(session, DEFAULT_TENANT, key)
        return await _created(order, runtime, session, inputs, known, key)


def _is_done(order: RowOrder, found: Batch) -> bool:
    return found.ended_at is not None and not (order.retry_failed and found.completed < found.total)


async def _continued(order: RowOrder, session: Session, found: Batch) -> Batch:
    if found.ended_at is not None:
        try:
            await retry(session, found, RetrySelection(), max_attempts=order.settings.max_attempts)
        except (NotRetryable, BatchGone) as error:
            # If it runs, another process was faster.
            if not (isinstance(error, NotRetryable) and error.running):
                raise BatchlineError(f"failed rows cannot run again: {error}; give fresh=True") from None
    await batches.change_settings(session, found.id, order.settings)
    if found.paused_at is not None:
        await batches.resume(session, found.id)
    # The user has probably removed the cause of the failures.
    await batches.retry_finalizing(session, found.id)
    return await batches.get(session, found.id) or found


async def _created(
    order: RowOrder, runtime: Runtime, session: Session, inputs: InputSet, known: Fingerprint, key: str
) -> Batch:
    file = await files.find(session, DEFAULT_TENANT, known.digest)
    if file is None:
        async with inputs.sources() as sources:
            file = await ingest(
                runtime.url,
                sources,
                tenant=DEFAULT_TENANT,
                filename=inputs.title,
                rules=ReadingRules(),
                known=known,
            )
    plan = reuse.NOTHING
    if not order.fresh:
        plan = await reuse.plan(session, file.tenant, file.id, order.settings)
        await reuse.prepare(session, plan)
    return await creation.create(
        session,
        tenant=DEFAULT_TENANT,
        file_id=file.id,
        window=creation.NO_WINDOW,
        settings=order.settings,
        resume_key=key,
        plan=plan,
    )


async def _check_upstream(order: RowOrder) -> None:
    """Before anything is stored."""
    upstream = Upstreams().get(order.upstream.base_url)
    try:
        trouble = await upstream.check(order.upstream.api_key_env)
    finally:
        await upstream.close()
    if trouble is not None:
        raise BatchlineError(f"{trouble}; nothing was sent")


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of rows as those of the library, with the position in Python's count."""
    try:
        yield
    except InputRefused as error:
        index = None if error.row is None else error.row - 1
        raise InvalidRow(index, _OPTION.sub("", error.message)) from None
    except FileRefused as error:
        first = error.errors[0]
        raise InvalidRow(None if first.line is None else first.line - 1, first.message) from None
    except InputUnreadable as error:
        raise BatchlineError(str(error)) from error
