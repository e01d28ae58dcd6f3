"""Why a batch is paused: `Batch.paused_by` names the rule, and this adds its limit."""

from batchline.model import Batch, PauseReason, Spending
from batchline.model.spending import dollars
from batchline.store import failures
from batchline.store.session import Session


async def pause_reason(session: Session, batch: Batch) -> PauseReason | None:
    """None: the batch is not paused, or a user has paused it."""
    spending = batch.settings.spending or Spending()
    match batch.pause_rule:
        case None:
            return None
        case "max_cost" as rule:
            return PauseReason(rule, None if spending.max_cost is None else dollars(spending.max_cost))
        case "max_tokens" as rule:
            return PauseReason(rule, spending.max_tokens)
        case "sample" as rule:
            return PauseReason(rule, None)
        case rule:
            return PauseReason(rule, await failures.threshold(session, batch.id))
