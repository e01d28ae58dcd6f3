"""Reads the last answer to an item that did not meet the rules of its batch."""

from batchline.executors.validating import InvalidAnswersUnavailable
from batchline.model import Item
from batchline.store import attempts
from batchline.store.session import Session, StoreUnavailable


class StoredInvalidAnswers:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def last(self, item: Item) -> bytes | None:
        try:
            return await attempts.last_invalid_answer(self._session, item.claim.lane_id, item.ordinal)
        except StoreUnavailable as error:
            raise InvalidAnswersUnavailable(str(error)) from error
