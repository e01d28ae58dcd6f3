"""The minimum for any design that returns bodies and keeps a result for each: read, and insert.

It claims nothing, so a second worker could not help. It counts nothing, and after a crash nothing records
what was in progress. The time that a design needs beyond this is the price of these features.
"""

from collections.abc import Sequence

from batchline.store.arrays import Int4Array, TextArray
from batchline.store.session import Session
from benchmarks.baselines.statements import set_up, statement
from benchmarks.inputs import OUTPUT


class Minimum:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = 0

    @staticmethod
    def set_up(url: str, lines: int) -> None:
        set_up(url, "minimum", lines)

    async def create(self) -> None:
        """Start again from the first line."""
        await self._session.rows(statement("minimum_create"), {})
        self._next = 0

    async def claim(self, limit: int) -> Sequence[int]:
        rows = await self._session.raw_rows(
            statement("minimum_read"), {"first": self._next, "end": self._next + limit}
        )
        self._next += limit
        return [line for line, _custom_id, _body in rows]

    async def settle(self, finished: Sequence[int]) -> None:
        outputs = TextArray([OUTPUT] * len(finished))
        await self._session.rows(
            statement("minimum_insert"), {"lines": Int4Array(finished), "outputs": outputs}
        )
