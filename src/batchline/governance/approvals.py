"""The operation that decides on other batches: its children are decisions, each run and failed on its own."""

from typing import Any
from uuid import UUID

from batchline.governance.access import Actor
from batchline.governance.errors import InvalidSubmission
from batchline.governance.governor import Governor
from batchline.governance.operations import APPROVALS, Operation
from batchline.model import GovernedBatch, ids
from batchline.store import operations
from batchline.store.session import Session

APPROVE = Operation(
    "approve",
    request=None,
    description="Decide on batches that wait for an approval",
    schema={
        "type": "object",
        "properties": {
            "batch_id": {"type": "string", "minLength": 1, "maxLength": 100},
            "decision": {"enum": ["approve", "reject"], "default": "approve"},
            "reason": {"type": "string", "maxLength": 2000},
        },
        "required": ["batch_id"],
        "additionalProperties": False,
    },
    largest_batch=20,
    executor=APPROVALS,
)


async def decide(session: Session, governor: Governor, parent: UUID, item: dict[str, Any]) -> GovernedBatch:
    """Do what a child asks for, as the user who submitted it, with the role that his keys have now.

    Raises Refused as the act itself does.
    """
    submitter = await operations.submitter(session, parent)
    if submitter is None:
        raise InvalidSubmission("Nobody who has a key any more has submitted this.")
    actor = Actor(submitter.tenant, submitter.user, submitter.role, alone=submitter.alone)
    batch_id = ids.read(ids.BATCH, str(item.get("batch_id")))
    if batch_id is None:
        raise InvalidSubmission("The batch_id is none.", param="batch_id")
    act = governor.reject if item.get("decision") == "reject" else governor.approve
    return await act(session, actor, batch_id, item.get("reason"))
