"""Runs decisions on batches, each on behalf of the user who submitted it. A refusal fails that item only."""

import msgspec

from batchline.batches.output import answered_line, failed_line
from batchline.governance.approvals import decide
from batchline.governance.errors import Refused
from batchline.governance.operations import Operation
from batchline.governance.rules import Rules
from batchline.model import Completed, Failed, Item, Retried, Verdict, ids
from batchline.store.session import Session, StoreUnavailable


class Approvals:
    """A handler for items of the operation that decides on batches, with a connection of its own."""

    def __init__(self, url: str, rules: Rules) -> None:
        self._session = Session(url, "approvals")
        self._rules = rules

    async def __call__(self, operation: Operation, item: Item) -> Verdict:
        try:
            batch = await decide(
                self._rules, self._session, item.claim.batch_id, msgspec.json.decode(item.body)
            )
        except Refused as refused:
            return Failed(item, failed_line(item, refused.code, refused.message))
        except StoreUnavailable as error:
            return Retried(item, "store_unavailable", str(error), 1.0)
        reported = {"batch_id": ids.show(ids.BATCH, batch.id), "approval": batch.approval.value}
        return Completed(item, 200, answered_line(item, 200, item.request_id, msgspec.json.encode(reported)))

    async def close(self) -> None:
        await self._session.close()
