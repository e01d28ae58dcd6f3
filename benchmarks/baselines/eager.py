"""The eager design: creating a batch inserts a pending row per line; claim and completion rewrite it."""

from collections.abc import Sequence
from uuid import UUID

from batchline.model.ids import new_id
from batchline.store.arrays import TextArray
from batchline.store.session import Session
from benchmarks.baselines.statements import claim_of, set_up, statement
from benchmarks.inputs import MODEL, OUTPUT


class Eager:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._daemon = new_id()

    @staticmethod
    def set_up(url: str, lines: int) -> None:
        set_up(url, "eager", lines)

    async def create(self) -> None:
        await self._session.rows(statement("eager_create"), {"batch": new_id()})

    async def claim(self, limit: int) -> Sequence[UUID]:
        claim = claim_of("eager", limit)
        rows = await self._session.raw_rows(claim, {"model": MODEL, "daemon": self._daemon})
        return [request_id for request_id, _custom_id, _body in rows]

    async def settle(self, finished: Sequence[UUID]) -> None:
        outputs = TextArray([OUTPUT] * len(finished))
        await self._session.rows(statement("eager_complete"), {"ids": list(finished), "outputs": outputs})
