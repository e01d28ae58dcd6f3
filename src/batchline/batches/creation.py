"""Creates batches, for clients of the server and for commands."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal
from uuid import UUID

import msgspec

from batchline.batches import arrangement
from batchline.batches import reuse as reusing
from batchline.batches.cost import spending_for
from batchline.batches.staging import AT_ONCE, StagingRequest
from batchline.config import durations
from batchline.config.settings import UpstreamSettings
from batchline.files import parsing
from batchline.files.parsing import MAX_ERRORS
from batchline.model import AnswerRules, Batch, ContentError, RunSettings, Spending
from batchline.model.ids import new_id
from batchline.store import batches, files
from batchline.store import creation as store_creation
from batchline.store.batches import AlreadyExists, NewBatch
from batchline.store.creation import BatchCreation
from batchline.store.idempotency import IdempotencyKey
from batchline.store.session import Session

# A batch without a deadline.
NO_WINDOW = "none"

# Lines of earlier files that one request hashes for its reuse: some seconds.
_MAX_HASHED = 1_000_000


class InvalidWindow(ValueError):
    """The completion window is not valid."""


def window_seconds(window: str) -> float:
    """`24h`, `90m`, `30s`, `7d`."""
    try:
        return durations.seconds(window)
    except ValueError as error:
        raise InvalidWindow(f"completion window {window!r}: {error}") from None


def window_or_none(window: str) -> float | None:
    """As `window_seconds`; `none` is no deadline."""
    try:
        return None if window == NO_WINDOW else window_seconds(window)
    except InvalidWindow as error:
        raise InvalidWindow(f"{error}; `{NO_WINDOW}` is no deadline") from None


def resume_key(digest: bytes, upstream: str, answers: AnswerRules | None = None) -> str:
    """The same input, upstream and rules for answers are the same run, whatever the other options."""
    origin = upstream.removesuffix("/").removesuffix("/v1")
    rules = b"" if answers is None else msgspec.json.encode(answers, order="sorted")
    return hashlib.sha256(digest + origin.encode() + rules).hexdigest()


class BatchRequest(msgspec.Struct, frozen=True):
    """A batch that a client of the server requests."""

    tenant: str
    file_id: UUID
    endpoint: str
    window: str
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None
    # The models that can be run; None: any.
    served: frozenset[str] | None = None
    idempotency_key: IdempotencyKey | None = None
    # Use answers of the tenant's earlier batches.
    reuse: bool = False
    # How it runs.
    staging: StagingRequest = AT_ONCE
    # Send identical lines once.
    dedupe: bool = False
    # Send lines whose prompts begin alike together.
    order: Literal["prefix"] | None = None
    priority: int = 0
    # The prices of all models.
    spending: Spending = Spending()
    # Which upstream of the server serves a model; None: it has none. Answers are reused from the same one.
    upstream_for: Callable[[str], UpstreamSettings | None] | None = None


async def create_requested(session: Session, requested: BatchRequest) -> Batch:
    """Create a batch. It fails at once if its file has lines that cannot run.

    Raises FileNotFound, WrongPurpose, InvalidStaging, InvalidArrangement, and IdempotencyConflict if the key
    was used before.
    """
    async with _creating(session, requested) as batch:
        return batch


async def try_out_requested(session: Session, requested: BatchRequest) -> Batch:
    """The batch that `create_requested` would create. It is rolled back: so the database has checked it."""
    try:
        async with _creating(session, requested) as batch:
            raise _TriedOut
    except _TriedOut:
        return batch


class _TriedOut(Exception):
    """Rolls a batch back that was only to be checked."""


@asynccontextmanager
async def _creating(session: Session, requested: BatchRequest) -> AsyncIterator[Batch]:
    """The transaction that creates the batch."""
    new = NewBatch(
        id=new_id(),
        tenant=requested.tenant,
        file_id=requested.file_id,
        window=requested.window,
        window_seconds=window_seconds(requested.window),
        settings=await _settings(session, requested),
        endpoint=requested.endpoint,
        metadata=requested.metadata,
        output_expires_after=requested.output_expires_after,
        planned_output_id=new_id(),
        priority=requested.priority,
    )
    plan = reusing.NOTHING
    if requested.reuse:
        plan = await reusing.plan(session, new.tenant, new.file_id, new.settings)
        await reusing.prepare(session, plan, _MAX_HASHED)
    extra_time = plan.seconds + await arrangement.extra_seconds(session, new.file_id, new.settings)
    async with store_creation.creation(session, new, extra_time=extra_time) as creation:
        if requested.idempotency_key is not None:
            await creation.remember(requested.idempotency_key)
        file = await creation.file()
        errors = file.errors or tuple(
            _unfit(line, requested) for line in await creation.unfit_lines(file, requested.served, MAX_ERRORS)
        )
        if errors:
            yield await creation.fail(errors, event_id=new_id())
            return
        yield await _created(creation, new.settings, plan)


async def _created(creation: BatchCreation, settings: RunSettings, plan: reusing.ReusePlan) -> Batch:
    batch = await creation.create()
    if plan.files:
        batch = await creation.reuse()
    if arrangement.is_arranged(settings):
        batch = await creation.arrange()
    return batch if settings.steps is None else await creation.begin_steps()


async def _settings(session: Session, requested: BatchRequest) -> RunSettings:
    routed = {}
    if requested.upstream_for is not None:
        models = await files.models(session, requested.file_id)
        routed = {model: requested.upstream_for(model) for model in models}
    settings = RunSettings(
        spending=await spending_for(session, requested.file_id, requested.spending),
        served_by=None
        if requested.upstream_for is None
        else {
            model: upstream.base_url
            for model, upstream in routed.items()
            if upstream is not None and upstream.provider is None
        },
    )
    settings = requested.staging.applied(settings)
    settings = msgspec.structs.replace(settings, dedupe=requested.dedupe, order=requested.order)
    arrangement.check(settings)
    return settings


def _unfit(line: store_creation.UnfitLine, requested: BatchRequest) -> ContentError:
    mismatch = line.url != requested.endpoint
    fault = parsing.url_mismatch(requested.endpoint) if mismatch else parsing.model_not_found(line.model)
    return ContentError(fault.code, fault.message, fault.param, line.line_no)


async def create(
    session: Session,
    *,
    tenant: str,
    file_id: UUID,
    window: str,
    settings: RunSettings,
    endpoint: str | None = None,
    metadata: dict[str, str] | None = None,
    resume_key: str | None = None,
    plan: reusing.ReusePlan = reusing.NOTHING,
    priority: int = 0,
) -> Batch:
    """Create a batch, or return the one that a concurrent process created with the same `resume_key`.

    `plan`: what to reuse, prepared.
    """
    new = NewBatch(
        id=new_id(),
        tenant=tenant,
        file_id=file_id,
        window=window,
        window_seconds=window_or_none(window),
        settings=settings,
        endpoint=endpoint,
        metadata=metadata,
        resume_key=resume_key,
        priority=priority,
    )
    try:
        if not plan.files and settings.steps is None and not arrangement.is_arranged(settings):
            return await batches.create(session, new)
        extra_time = plan.seconds + await arrangement.extra_seconds(session, file_id, settings)
        async with store_creation.creation(session, new, extra_time=extra_time) as creation:
            return await _created(creation, settings, plan)
    except AlreadyExists:
        found = await batches.find(session, tenant, new.resume_key or "")
        if found is None:
            raise
        return found
