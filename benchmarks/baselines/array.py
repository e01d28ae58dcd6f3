"""The array design: an array on each template lists the batches in which it is active; fixed so that it ends.

docs/why-not-the-array.md explains it.
"""

from collections.abc import Sequence
from uuid import UUID

from batchline.model.ids import new_id
from batchline.store.arrays import TextArray
from batchline.store.session import Session
from benchmarks.baselines.statements import claim_of, set_up, statement
from benchmarks.inputs import MODEL, OUTPUT


class Array:
    """The array design in one of two forms.

    "array" is fixed by one condition, with PostgreSQL's default planning. "array_kind" has a second array and
    everything else that helps, and is planned like Batchline's statements.
    """

    def __init__(self, session: Session, form: str) -> None:
        self._session = session
        self._form = form
        self._daemon = new_id()
        self._batch = new_id()

    def set_up(self, url: str, lines: int) -> None:
        set_up(url, self._form, lines)

    async def create(self) -> None:
        if self._form == "array":
            await self._session.rows(statement("default_planner"), {})
        await self._session.rows(statement("array_create"), {"batch": self._batch})

    async def claim(self, limit: int) -> Sequence[UUID]:
        claim = claim_of(self._form, limit)
        rows = await self._session.raw_rows(claim, {"model": MODEL, "daemon": self._daemon})
        return [request_id for request_id, _custom_id, _body in rows]

    async def settle(self, finished: Sequence[UUID]) -> None:
        outputs = TextArray([OUTPUT] * len(finished))
        await self._session.rows(
            statement(f"{self._form}_complete"), {"ids": list(finished), "outputs": outputs}
        )

    async def advance(self, line: int) -> None:
        """Set the state of a drain that has finished everything before this line."""
        await self._session.rows(
            statement(f"{self._form}_advance"),
            {"batch": self._batch, "line": line, "output": OUTPUT.decode()},
        )
