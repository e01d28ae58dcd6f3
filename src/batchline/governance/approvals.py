"""The operation `approve`, whose children are decisions on other batches. Each succeeds or fails alone."""

from typing import Any
from uuid import UUID

from batchline.governance import decisions
from batchline.governance.access import Actor
from batchline.governance.errors import InvalidSubmission
from batchline.governance.operations import APPROVALS, Operation
from batchline.governance.rules import Rules
from batchline.model import GovernedBatch, ids
from batchline.store import operations
from batchline.store.session import Session

APPROVE = Operation(
    "approve",
    request=None,
    description="Approve or reject batches that wait for approval",
    schema={
        "type": "object",
        "properties": {
            "batch_id": {"type": "string", "minLength": 1, "maxLength": 100},
            "decision": {"enum": ["approve", "reject"], "default": "approve"},
            "reason": {"type": "string", "maxLength": 2000},
            "content_digest": {"type": "string", "maxLength": 64},
        },
        "required": ["batch_id"],
        "additionalProperties": False,
    },
    largest_batch=20,
    # `decisions` checks the role again, when a decision runs.
    submitters=("role:approver", "role:admin"),
    executor=APPROVALS,
)


async def decide(rules: Rules, session: Session, parent: UUID, item: dict[str, Any]) -> GovernedBatch:
    """Run one child as the user who submitted it, with the current role of that user's keys.

    Raises Refused, as `decisions` does.
    """
    submitter = await operations.submitter(session, parent)
    if submitter is None:
        raise InvalidSubmission("The submitter's API keys have all been revoked.")
    actor = Actor(submitter.tenant, submitter.user, submitter.role, alone=submitter.alone)
    batch_id = ids.read(ids.BATCH, str(item.get("batch_id")))
    if batch_id is None:
        raise InvalidSubmission("batch_id is not a valid batch id.", param="batch_id")
    if item.get("decision") == "reject":
        return await decisions.reject(
            session, actor, batch_id, item.get("reason"), item.get("content_digest")
        )
    return await decisions.approve(
        rules, session, actor, batch_id, item.get("reason"), content_digest=item.get("content_digest")
    )
