"""/v1/batches: create, list, get and cancel batches, as OpenAI's clients do, and retry their lines."""

from hashlib import sha256
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.auth import Called
from batchline.api.context import ApiContext, InContext
from batchline.api.errors import NO_RETRY, ApiError, documented, not_found
from batchline.api.governance.dependencies import InRules
from batchline.api.openai.pages import ListPage
from batchline.api.routing import AuthenticatedRoute
from batchline.api.staging import StagedRequest, StepsObject
from batchline.batches.arrangement import InvalidArrangement
from batchline.batches.batch_details import batch_details
from batchline.batches.batch_object import batch_object, unix_seconds
from batchline.batches.cost import spending_in
from batchline.batches.creation import BatchRequest, create_requested, try_out_requested
from batchline.batches.retry import BatchGone, InvalidSelection, NotRetryable, retry
from batchline.batches.staging import InvalidStaging
from batchline.config.settings import ANY_MODEL, ServerSettings
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct, perform
from batchline.governance.errors import Conflict, NotFound
from batchline.governance.rules import Rules
from batchline.model import MAX_PRIORITY, MIN_PRIORITY, Batch, ItemHistory, RetrySelection, Unfinished, ids
from batchline.model.endpoints import ENDPOINTS, Endpoints
from batchline.store import attempts, batches
from batchline.store.batches import FileNotFound
from batchline.store.creation import WrongPurpose
from batchline.store.idempotency import IdempotencyConflict, IdempotencyKey
from batchline.store.session import Session

router = APIRouter(prefix="/v1/batches", tags=["batches"], route_class=AuthenticatedRoute)

_SCOPE = "batches"
_MAX_KEY = 255
_MAX_CODES = 100
# Fields that OpenAI's API does not have.
_EXTENSIONS = (
    "reuse",
    "dedupe",
    "order",
    "steps",
    "step_pause_seconds",
    "max_failed",
    "sample",
    "validate_only",
)

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


# Requests


class OutputExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000, strict=True)]


class CreateBatch(StagedRequest):
    model_config = ConfigDict(extra="forbid")

    input_file_id: str
    endpoint: Annotated[
        str,
        Field(
            examples=sorted(ENDPOINTS),
            description="The url of all lines: one of OpenAI's, or a path that the operator allows"
            " (`server.endpoints`).",
        ),
    ]
    completion_window: Annotated[str, Field(examples=["24h"])]
    metadata: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(max_length=64)],
                Annotated[str, StringConstraints(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: OutputExpiresAfter | None = None
    reuse: Annotated[
        bool,
        Field(
            strict=True,
            description="Lines that an earlier batch of this tenant has answered are not sent again."
            " Not part of OpenAI's API.",
        ),
    ] = False

    dedupe: Annotated[
        bool,
        Field(
            strict=True,
            description="Identical lines are sent once, and all of them get the answer. Not with steps or a"
            " sample. Not part of OpenAI's API.",
        ),
    ] = False
    order: Annotated[
        Literal["prefix"] | None,
        Field(
            description="prefix: lines whose prompts begin alike are sent together. The output stays in the"
            " order of the input. Not with steps or a sample. Not part of OpenAI's API.",
        ),
    ] = None

    priority: Annotated[
        int,
        Field(
            ge=MIN_PRIORITY,
            le=MAX_PRIORITY,
            strict=True,
            description="Of the tenant's batches, those with a higher priority run first."
            " Not part of OpenAI's API.",
        ),
    ] = 0

    def fingerprint(self) -> bytes:
        # Without the extensions, a request has the same fingerprint as before there were any.
        unset = {name for name in _EXTENSIONS if getattr(self, name) is None or getattr(self, name) is False}
        given = self.model_dump(exclude=unset)
        return sha256(msgspec.json.encode(given, order="sorted")).digest()


class RetryBatch(BaseModel):
    """Which lines run again. None: all that are not completed."""

    model_config = ConfigDict(extra="forbid")

    only: Annotated[list[Literal["failed", "expired", "cancelled"]], Field(min_length=1)] | None = None
    codes: (
        Annotated[
            list[Annotated[str, Field(examples=["http_401"])]], Field(min_length=1, max_length=_MAX_CODES)
        ]
        | None
    ) = None
    causes: Annotated[list[str], Field(min_length=1, max_length=_MAX_CODES)] | None = None

    def selection(self) -> RetrySelection:
        return RetrySelection(
            None if self.only is None else frozenset(map(Unfinished, self.only)),
            None if self.codes is None else tuple(self.codes),
            None if self.causes is None else tuple(self.causes),
        )


# Responses


class BatchError(BaseModel):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    """OpenAI's three, and the other states. The seven states add up to the total."""

    total: int
    completed: int
    failed: int
    pending: int
    in_progress: int
    retrying: int
    cancelled: int
    expired: int


class InputTokensDetails(BaseModel):
    cached_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class BatchUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Failures(BaseModel):
    """Items that failed for one cause. `key` is the same in every batch; `other` sums up unlisted causes."""

    key: str
    code: str | None
    message: str
    count: int
    retrying: int
    example_custom_id: str | None


class CostObject(BaseModel):
    """Dollars and tokens. `spent` is null if no model has a price."""

    currency: Literal["USD"]
    spent: float | None
    max_cost: float | None
    max_tokens: int | None
    reserved: float
    reserved_tokens: int
    unconfirmed: float
    unconfirmed_tokens: int
    overshoot: float
    overshoot_tokens: int
    unpriced_models: list[str]


class BatchExtension(BaseModel):
    """What OpenAI's batches do not have. Only the answer for one batch has `failures` and `cost`; `cost` is
    null if it has neither prices nor caps."""

    # Completed requests whose answers were copied from earlier batches.
    reused: int
    # Requests that got the answer, or the error, of an identical one.
    duplicates: int
    # `prefix`: requests whose prompts begin alike are sent together; null: in the order of the file.
    order: Literal["prefix"] | None
    # OpenAI's clients have no paused batches, so its status is in_progress.
    paused: bool
    # The rule that has paused it; null: a user has.
    paused_by: str | None
    steps: StepsObject | None
    priority: int
    concurrency: int | None
    failures: list[Failures] | None = None
    cost: CostObject | None = None


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    batchline: BatchExtension


class BatchValidation(BaseModel):
    """The answer to `validate_only`. Not part of OpenAI's API."""

    object: Literal["batch.validation"] = "batch.validation"
    valid: bool
    errors: BatchErrors | None
    # Lines, and how many of them would have the answer of an earlier batch.
    total: int
    reused: int


class ItemAttempt(BaseModel):
    attempt: int
    error_code: str
    message: str
    not_before: int
    created_at: int


class ItemAttempts(BaseModel):
    """An item and its failed attempts, oldest first. Not part of OpenAI's API."""

    object: Literal["batch.item"] = "batch.item"
    batch_id: str
    custom_id: str
    line: int
    model: str
    state: str
    attempt: int
    claimed_at: int | None
    not_before: int | None
    status_code: int | None
    finished_at: int | None
    attempts: list[ItemAttempt]


class BatchList(ListPage):
    data: list[BatchObject]


# Routes


@router.post("", responses=documented(404, 413, 422))
async def create_batch(
    requested: CreateBatch,
    context: InContext,
    caller: Called,
    idempotency_key: Annotated[
        str | None,
        Header(description="Repeating a request with the same key and body returns the same batch."),
    ] = None,
) -> BatchObject | BatchValidation:
    """Run every line of an uploaded file."""
    request = _request(requested, context.settings, caller, idempotency_key)
    async with context.sessions.one() as session:
        try:
            if requested.validate_only:
                return _validation(await try_out_requested(session, request))
            return displayed(await create_requested(session, request))
        except FileNotFound:
            raise not_found("file", requested.input_file_id, "input_file_id") from None
        except (InvalidStaging, InvalidArrangement) as error:
            raise _invalid(error.param, str(error)) from None
        except WrongPurpose as error:
            message = f"Invalid 'input_file_id': {error}."
            raise ApiError(400, message, code="invalid_file_purpose", param="input_file_id") from None
        except IdempotencyConflict as made:
            if not made.same:
                message = "This Idempotency-Key was used with other parameters. Use a new key."
                code = "idempotency_key_reused"
                raise ApiError(422, message, code=code, headers=NO_RETRY) from None
            return displayed(await _found(session, caller, made.object_id))


@router.get("", responses=documented(404))
async def list_batches(
    context: InContext,
    caller: Called,
    after: Annotated[str | None, Query(description="The last batch of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchList:
    """Batches, newest first."""
    async with context.sessions.one() as session:
        last = None if after is None else await _named(session, caller, after, "after")
        page = await batches.list_newest(session, caller.tenant, limit=limit + 1, after=last)
    return BatchList.of([displayed(batch) for batch in page], limit)


@router.get("/{batch_id}", responses=documented(404))
async def get_batch(batch_id: str, context: InContext, caller: Called) -> BatchObject:
    """A batch, why items of it failed, and what it has cost."""
    async with context.sessions.one() as session:
        batch = await _named(session, caller, batch_id, "batch_id")
        return BatchObject(**await batch_details(session, batch))


@router.get("/{batch_id}/attempts", responses=documented(404))
async def get_attempts(
    batch_id: str,
    context: InContext,
    caller: Called,
    custom_id: Annotated[str, Query(description="The custom_id of the line.")],
) -> ItemAttempts:
    """One item of a batch and its failed attempts. OpenAI's API has no such call."""
    async with context.sessions.one() as session:
        batch = await _named(session, caller, batch_id, "batch_id")
        item = await attempts.of_item(session, batch.id, custom_id)
    if item is None:
        raise not_found("item", custom_id, "custom_id")
    return displayed_item(batch, item)


@router.post("/{batch_id}/cancel", responses=documented(404, 409, 413))
async def cancel_batch(batch_id: str, context: InContext, caller: Called) -> BatchObject:
    """Finish the requests in flight and run no others. Results stay. Repeating it changes nothing."""
    async with context.sessions.one() as session:
        batch = await _named(session, caller, batch_id, "batch_id")
        closed = await batches.close(session, batch.id, "cancel")
        now = await _found(session, caller, batch.id)
    if closed or now.cancelling_at is not None:
        return displayed(now)
    why = "its completion window has ended" if now.expiring_at else f"it is {now.status.value}"
    raise ApiError(
        409, f"Batch {batch_id} cannot be cancelled: {why}.", code="cannot_cancel", headers=NO_RETRY
    )


@router.post("/{batch_id}/pause", responses=documented(404, 409, 413))
async def pause_batch(batch_id: str, context: InContext, caller: Called, rules: InRules) -> BatchObject:
    """Finish the requests in flight and run no others until it is resumed. OpenAI's API has no such call."""
    return await _acted(rules, context, caller, batch_id, ActKind.PAUSE)


@router.post("/{batch_id}/resume", responses=documented(404, 409, 413))
async def resume_batch(batch_id: str, context: InContext, caller: Called, rules: InRules) -> BatchObject:
    """Let a paused batch go on: with its next step, if it runs in steps. OpenAI's API has no such call."""
    return await _acted(rules, context, caller, batch_id, ActKind.RESUME)


@router.post("/{batch_id}/retry", responses=documented(404, 409, 413))
async def retry_batch(
    batch_id: str, context: InContext, caller: Called, requested: RetryBatch | None = None
) -> BatchObject:
    """Run lines of an ended batch that are not completed again, in the same batch. OpenAI's API has no such
    call."""
    selection = (requested or RetryBatch()).selection()
    async with context.sessions.one() as session:
        batch = await _named(session, caller, batch_id, "batch_id")
        try:
            await retry(session, batch, selection, tenant=caller.tenant)
        except InvalidSelection as error:
            raise _invalid(error.param, str(error)) from None
        except NotRetryable as error:
            message = f"Batch {batch_id} cannot be retried: {error}."
            raise ApiError(409, message, code=error.code, headers=NO_RETRY) from None
        except BatchGone:
            raise not_found("batch", batch_id, "batch_id") from None
        return displayed(await _found(session, caller, batch.id))


def _validation(batch: Batch) -> BatchValidation:
    """`batch` is as it would be, and was not created."""
    errors = batch_object(batch)["errors"]
    return BatchValidation(valid=errors is None, errors=errors, total=batch.total, reused=batch.reused)


async def _acted(
    rules: Rules, context: ApiContext, caller: Actor, batch_id: str, kind: ActKind
) -> BatchObject:
    """Do something with an ordinary batch, with an audit record."""
    async with context.sessions.one() as session:
        batch = await _named(session, caller, batch_id, "batch_id")
        try:
            await perform(rules, session, caller, batch.id, BatchAct(kind))
        except Conflict as error:
            code = error.code.lower()
            raise ApiError(409, error.message, code=code, headers=NO_RETRY) from None
        except NotFound:
            raise not_found("batch", batch_id, "batch_id") from None
        return displayed(await _found(session, caller, batch.id))


def displayed(batch: Batch) -> BatchObject:
    return BatchObject(**batch_object(batch))


def displayed_item(batch: Batch, item: ItemHistory) -> ItemAttempts:
    return ItemAttempts(
        batch_id=ids.show(ids.BATCH, batch.id),
        custom_id=item.custom_id,
        line=item.line_no,
        model=item.model,
        state=item.state,
        attempt=item.attempt,
        claimed_at=unix_seconds(item.claimed_at),
        not_before=unix_seconds(item.not_before),
        status_code=item.status_code,
        finished_at=unix_seconds(item.finished_at),
        attempts=[
            ItemAttempt(
                attempt=each.attempt,
                error_code=each.error_code,
                message=each.message,
                not_before=int(each.not_before.timestamp()),
                created_at=int(each.created_at.timestamp()),
            )
            for each in item.attempts
        ],
    )


def _request(
    requested: CreateBatch, settings: ServerSettings, caller: Actor, key: str | None
) -> BatchRequest:
    if (fault := Endpoints(settings.endpoints).fault(requested.endpoint)) is not None:
        raise _invalid("endpoint", fault)
    if requested.completion_window not in settings.windows:
        raise _invalid("completion_window", f"must be one of {', '.join(settings.windows)}")
    if key is not None and not (1 <= len(key) <= _MAX_KEY and key.isprintable() and key.isascii()):
        raise _invalid("Idempotency-Key", f"must have 1 to {_MAX_KEY} printable characters")
    file_id = ids.read(ids.FILE, requested.input_file_id)
    if file_id is None:
        raise not_found("file", requested.input_file_id, "input_file_id")
    wanted = requested.output_expires_after
    kept = settings.output_retention if wanted is None else wanted.seconds
    return BatchRequest(
        tenant=caller.tenant,
        file_id=file_id,
        endpoint=requested.endpoint,
        window=requested.completion_window,
        metadata=requested.metadata,
        output_expires_after=None if kept is None else int(kept),
        served=served(settings),
        spending=spending_in(settings),
        upstream_for=settings.upstream_for if settings.upstreams else None,
        reuse=requested.reuse,
        dedupe=requested.dedupe,
        order=requested.order,
        staging=requested.staging(),
        priority=requested.priority,
        idempotency_key=None
        if key is None or requested.validate_only
        else IdempotencyKey(caller.tenant, _SCOPE, key, requested.fingerprint()),
    )


def served(settings: ServerSettings) -> frozenset[str] | None:
    models = frozenset(model for upstream in settings.upstreams for model in upstream.models)
    return None if ANY_MODEL in models else models


async def _named(session: Session, caller: Actor, text: str, param: str) -> Batch:
    batch_id = ids.read(ids.BATCH, text)
    batch = None if batch_id is None else await batches.of_tenant(session, caller.tenant, batch_id)
    if batch is None:
        raise not_found("batch", text, param)
    return batch


async def _found(session: Session, caller: Actor, batch_id: UUID) -> Batch:
    return await _named(session, caller, ids.show(ids.BATCH, batch_id), "batch_id")


def _invalid(param: str, rule: str) -> ApiError:
    return ApiError(400, f"Invalid '{param}': {rule}.", code="invalid_value", param=param)
