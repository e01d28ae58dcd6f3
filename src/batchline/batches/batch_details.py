"""A batch in full, for the API and for hooks: also why items failed, and what it has cost."""

from typing import Any

from batchline.batches.batch_object import batch_object, failure_objects
from batchline.batches.cost import cost_object, cost_of
from batchline.model import Batch
from batchline.store import failures
from batchline.store.session import Session


async def batch_details(session: Session, batch: Batch) -> dict[str, Any]:
    found = batch_object(batch)
    causes = await failures.causes(session, batch)
    cost = await cost_of(session, batch)
    more = {"failures": failure_objects(causes), "cost": cost_object(cost)}
    return found | {"batchline": found["batchline"] | more}
