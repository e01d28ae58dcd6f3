"""/api/v1/vms/batch and /api/v1/approvals/batch: other paths for the operations of virtual machines and for
`approve`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from batchline.api.context import InContext
from batchline.api.governance.dependencies import CurrentActor, InRules
from batchline.api.governance.errors import governed_responses
from batchline.api.governance.operations import BatchId, get_batch, retried
from batchline.api.governance.schemas import (
    PREFIX,
    AcceptedBatch,
    GovernedBatchDetail,
    GovernedBatchObject,
    SubmitBatch,
    ValidatedBatch,
    displayed,
)
from batchline.api.governance.submissions import SUBMISSION_RESPONSES, InDecisions, InSubmission, submit
from batchline.api.metrics import InCounters
from batchline.api.routing import AuthenticatedRoute
from batchline.governance.approvals import APPROVE

router = APIRouter(prefix=PREFIX, tags=["virtual machines"], route_class=AuthenticatedRoute)

_VMS = f"{PREFIX}/vms/batch"


class SubmitVms(SubmitBatch):
    operation: Literal["create", "delete"]


class SubmitPower(SubmitBatch):
    operation: Literal["start", "stop", "restart"]


class SubmitApprovals(SubmitBatch):
    items: Annotated[
        list[Any],
        Field(
            description="Each has batch_id, decision (approve or reject), reason and content_digest.",
            min_length=1,
        ),
    ]


@router.post("/vms/batch", status_code=202, responses=SUBMISSION_RESPONSES)
async def submit_vms(requested: SubmitVms, scope: InSubmission) -> AcceptedBatch | ValidatedBatch:
    """Create or delete virtual machines: the operations vm_create and vm_delete."""
    return await submit(scope, requested, f"vm_{requested.operation}", _VMS)


@router.post("/vms/batch/power", status_code=202, responses=SUBMISSION_RESPONSES)
async def submit_power(requested: SubmitPower, scope: InSubmission) -> AcceptedBatch | ValidatedBatch:
    """Start, stop or restart virtual machines: the operations vm_start, vm_stop and vm_restart."""
    return await submit(scope, requested, f"vm_{requested.operation}", _VMS)


router.get(
    "/vms/batch/{batch_id}",
    name="get_vms",
    response_model=GovernedBatchDetail,
    responses=governed_responses(404),
)(get_batch)


@router.post("/vms/batch/{batch_id}/retry", status_code=202, responses=governed_responses(404, 409))
async def retry_vms(
    batch_id: BatchId,
    actor: CurrentActor,
    context: InContext,
    rules: InRules,
    counters: InCounters,
    response: Response,
) -> GovernedBatchObject:
    batch = await retried(batch_id, actor, context, rules, counters)
    response.headers["location"] = f"{_VMS}/{batch_id}"
    return displayed(batch)


@router.post("/approvals/batch", status_code=202, responses=SUBMISSION_RESPONSES)
async def submit_approvals(requested: SubmitApprovals, scope: InDecisions) -> AcceptedBatch | ValidatedBatch:
    """Decide on several batches. Each decision is a child, and fails alone if it is refused."""
    return await submit(scope, requested, APPROVE.name)
