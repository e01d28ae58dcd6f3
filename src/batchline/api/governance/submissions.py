"""POST /api/v1/operations/{operation}/batches: submits governed batches. Other paths use `submit`, too.

Each registered operation has a separate route, so that the OpenAPI document shows its schema. One more route,
for all other names, answers that the operation does not exist.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Response
from pydantic import WithJsonSchema, create_model

from batchline.api.context import InContext
from batchline.api.governance.dependencies import GovernedCaller, InRules, Submitting, SubmittingDecisions
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.schemas import (
    PREFIX,
    AcceptedBatch,
    SubmitBatch,
    ValidatedBatch,
    submitted,
)
from batchline.api.metrics import InCounters
from batchline.api.routing import AuthenticatedRoute
from batchline.governance import submissions
from batchline.governance.errors import LimitReached, NotAllowed, NotFound, Refused
from batchline.governance.operations import APPROVALS, Operation
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.governance.submissions import Submission, Submitted, Validated
from batchline.model import ids
from batchline.store.pool import Sessions
from batchline.store.session import StatementRefused

router = APIRouter(prefix=PREFIX, tags=["operations"], route_class=AuthenticatedRoute)

SUBMISSION_RESPONSES = governed_responses(404, 422) | {200: {"model": ValidatedBatch}}


@dataclass(frozen=True, slots=True)
class SubmissionScope:
    """What a route needs to submit a batch."""

    caller: Submitting
    context: InContext
    rules: InRules
    counters: InCounters
    response: Response


@dataclass(frozen=True, slots=True)
class DecisionScope(SubmissionScope):
    """What a route needs to submit a batch of approvals."""

    caller: SubmittingDecisions


InSubmission = Annotated[SubmissionScope, Depends()]
InDecisions = Annotated[DecisionScope, Depends()]


async def submit(
    scope: SubmissionScope, requested: SubmitBatch, operation: str, below: str = f"{PREFIX}/batches"
) -> AcceptedBatch | ValidatedBatch:
    """Submit a batch, or only check it, and count the outcome for the metrics."""
    order = Submission(
        operation,
        requested.items,
        requested.request_id,
        requested.reason,
        requested.hold,
        None if requested.custom_ids is None else tuple(requested.custom_ids),
        requested.staging(),
    )
    try:
        made = await _made(
            scope.rules, scope.context.sessions, scope.caller, order, validate_only=requested.validate_only
        )
    except Refused as refused:
        scope.counters.submitted(operation, _result(refused))
        if isinstance(refused, LimitReached):
            scope.counters.limited(refused)
        raise
    except StatementRefused:
        scope.counters.submitted(operation, "invalid")
        raise
    if isinstance(made, Validated):
        scope.counters.submitted(operation, "validated")
        scope.response.status_code = 200
        return ValidatedBatch(
            child_count=made.child_count,
            approval=made.approval.value,
            batch_id=None if made.made is None else ids.show(ids.BATCH, made.made.id),
        )
    scope.counters.submitted(operation, "replayed" if made.replayed else "accepted")
    answer = submitted(made.batch, below)
    scope.response.headers["location"] = answer.status_url
    return answer


async def _made(
    rules: Rules, sessions: Sessions, caller: GovernedCaller, order: Submission, *, validate_only: bool
) -> Submitted | Validated:
    """A replay is answered even over the limit of requests.

    No session is held while the items are checked, because that may take long.
    """
    fingerprint = await submissions.fingerprint_of(rules, caller.actor, order)
    async with sessions.one() as session:
        # First of all: a replay succeeds even if the same submission would be refused now.
        replayed = await submissions.replay(session, caller.actor, order, fingerprint)
        if replayed is not None:
            made = replayed.batch
            return Validated(made.total, made.approval, made) if validate_only else replayed
        if caller.over is not None:
            raise caller.over
        await submissions.permit(rules, session, caller.actor, order)
    ready = await submissions.prepare(rules, caller.actor, order, fingerprint)
    async with sessions.one() as session:
        act = submissions.try_out if validate_only else submissions.create
        return await act(rules, session, caller.actor, ready)


def _result(refused: Refused) -> str:
    match refused:
        case LimitReached():
            return "rate_limited"
        case NotAllowed() | NotFound():
            return "denied"
        case _:
            return "invalid"


def submission_routes(registry: Registry) -> APIRouter:
    """One route per operation."""
    routes = APIRouter(prefix=PREFIX, tags=["operations"], route_class=AuthenticatedRoute)
    for operation in registry.all():
        routes.add_api_route(
            f"/operations/{operation.name}/batches",
            _route(operation),
            methods=["POST"],
            status_code=202,
            response_model=AcceptedBatch | ValidatedBatch,
            responses=SUBMISSION_RESPONSES,
            summary=operation.description or f"Submit {operation.name}",
            operation_id=f"submit_{operation.name}",
        )
    return routes


def _route(operation: Operation) -> Callable[..., Awaitable[AcceptedBatch | ValidatedBatch]]:
    async def submit_batch(requested: SubmitBatch, scope: InSubmission) -> AcceptedBatch | ValidatedBatch:
        return await submit(scope, requested, operation.name)

    submit_batch.__annotations__["requested"] = _body(operation)
    if operation.executor == APPROVALS:
        submit_batch.__annotations__["scope"] = InDecisions
    submit_batch.__doc__ = (
        f"{operation.description or operation.name}: at most {operation.largest_batch} items."
    )
    return submit_batch


def _body(operation: Operation) -> type[SubmitBatch]:
    """The body with the operation's schema, for the OpenAPI document. Items are checked later, after
    replays."""
    items = {
        "type": "array",
        "items": _standalone(operation),
        "minItems": 1,
        "maxItems": operation.largest_batch,
        "title": "Items",
    }
    name = "Submit" + "".join(part.capitalize() for part in operation.name.replace("-", "_").split("_"))
    made = create_model(name, __base__=SubmitBatch, items=(Annotated[list[Any], WithJsonSchema(items)], ...))
    return made


def _standalone(operation: Operation) -> dict[str, Any]:
    """The schema, with an id if it has references: else they would be resolved in the OpenAPI document."""
    schema = dict(operation.schema)
    refers = b'"$ref"' in msgspec.json.encode(schema)
    return {"$id": f"urn:batchline:operation:{operation.name}", **schema} if refers else schema


@router.post(
    "/operations/{operation}/batches",
    status_code=202,
    responses=SUBMISSION_RESPONSES,
)
async def submit_any(
    requested: SubmitBatch, operation: Annotated[str, Path(max_length=100)], scope: InSubmission
) -> AcceptedBatch | ValidatedBatch:
    """Submit a batch of any operation by name."""
    return await submit(scope, requested, operation)
