"""Finds the batch of an earlier run over the same inputs, or creates one."""

from batchline.batches import creation as ordering
from batchline.batches import reuse
from batchline.cli.answer_options import check_endpoints
from batchline.cli.arrangement_options import kept
from batchline.cli.commands.retry import reopened
from batchline.cli.display.console import CommandError, err
from batchline.cli.files import ingest_inputs
from batchline.cli.model_check import warn_of_models
from batchline.cli.relay_options import after_relay
from batchline.cli.reuse import prepared
from batchline.cli.run.order import RunOrder
from batchline.cli.run.patience import patiently
from batchline.cli.runtime import Runtime
from batchline.cli.spending import settings_for
from batchline.cli.tracing import submitting
from batchline.files.ingest import Fingerprint
from batchline.model import DEFAULT_TENANT, Batch, BatchChange, RunSettings, Via
from batchline.store import batches, files
from batchline.store.session import Session
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.relay import BATCH_API_BY_NAME


async def find_or_create(
    order: RunOrder, runtime: Runtime, session: Session, known: Fingerprint
) -> tuple[Batch, bool]:
    key = resume_key(order, known)
    found = None if order.fresh else await patiently(lambda: batches.find(session, DEFAULT_TENANT, key))
    if found is not None and _is_done(order, found):
        return found, True
    await _check_upstream(order.settings)
    if found is not None:
        return await patiently(lambda: _continue(order, session, found)), True
    if order.fresh:
        # Only now that nothing prevents a new one. Without --fresh there was none; one that another run has
        # created meanwhile is found when this one creates its own.
        await patiently(lambda: batches.retire(session, DEFAULT_TENANT, key))
    with submitting(order.tracing, "run"):
        return await patiently(lambda: _create(order, runtime, session, known, key)), False


def resume_key(order: RunOrder, known: Fingerprint) -> str:
    return ordering.resume_key(known.digest, order.settings.upstream or "", order.settings.answers)


def _is_done(order: RunOrder, found: Batch) -> bool:
    return found.ended_at is not None and not (order.retry_failed and found.completed < found.total)


async def _continue(order: RunOrder, session: Session, found: Batch) -> Batch:
    sampling = order.sample is not None and found.sampling
    # With --yes the rest runs after the sample: this is the same command again.
    if order.sample is not None and not sampling and not order.yes:
        raise CommandError(
            f"--sample is for a batch that has not begun: {found.finished:,} of {found.total:,} lines are"
            " done; leave it out to continue, or give --fresh"
        )
    arranged, note = kept(order.settings, found)
    if note is not None:
        err().print(f"note: {note}", markup=False)
    settings = await settings_for(session, found.file_id, after_relay(arranged, found.settings))
    await warn_of_models(session, found.file_id, order.settings)
    if found.ended_at is not None:
        found = await reopened(session, found, order.settings.max_attempts)
    await batches.change_settings(session, found.id, settings)
    if order.change != BatchChange():
        async with session.transaction() as connection:
            await batches.change(connection, found.id, order.change)
    if found.paused_at is not None and not (sampling and found.pause_rule == "sample"):
        await batches.resume(session, found.id)
    # The user has probably removed the cause of the failures.
    await batches.retry_finalizing(session, found.id)
    return await batches.get(session, found.id) or found


async def _create(order: RunOrder, runtime: Runtime, session: Session, known: Fingerprint, key: str) -> Batch:
    """Repeatable: after a lost answer it finds the file and the batch that it created."""
    file = await files.find(session, DEFAULT_TENANT, known.digest)
    if file is None:
        file = await ingest_inputs(order.inputs, runtime.url, known=known, silent=order.silent)
    await check_endpoints(session, file.id, order.settings)
    console = None if order.as_json else order.console()
    plan = reuse.NOTHING if order.fresh else await prepared(session, file, order.settings, console)
    settings = await settings_for(session, file.id, order.settings)
    # Before the batch exists: then a worker may send at once.
    await warn_of_models(session, file.id, order.settings)
    return await ordering.create(
        session,
        tenant=DEFAULT_TENANT,
        file_id=file.id,
        window=order.window,
        settings=settings,
        resume_key=key,
        plan=plan,
        priority=order.change.priority or 0,
    )


async def _check_upstream(settings: RunSettings) -> None:
    """Check that the upstream answers, before anything is written."""
    relay = settings.relay
    anthropic = [settings.upstream or ""] if relay is not None and relay.api == "anthropic" else []
    upstream = Upstreams(anthropic=anthropic).get(settings.upstream or "")
    required = BATCH_API_BY_NAME[relay.api].batches if relay is not None and relay.via is Via.BATCH else None
    try:
        trouble = await upstream.check(settings.api_key_env, required)
    finally:
        await upstream.close()
    if trouble is not None:
        raise CommandError(f"{trouble}; nothing was sent")
