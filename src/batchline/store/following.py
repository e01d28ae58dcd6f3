"""Follows a running batch: up to which line number has every line a result?"""

from uuid import UUID

from batchline.store import outputs
from batchline.store.session import Session
from batchline.store.statements import statement


class Following:
    """Remembers how far each lane is finished, so that each look reads only what is new."""

    def __init__(self, session: Session, batch_id: UUID) -> None:
        self._session = session
        self._batch_id = batch_id
        self._lanes: list[outputs.OutputLane] = []
        self._cursors: list[int] = []
        self._lasts: list[int] = []

    async def finished(self) -> int:
        """The highest number so that all lines up to it have results. A look may find only part of them."""
        if not self._lanes:
            self._lanes = await outputs.find_lanes(self._session, self._batch_id)
            self._cursors = [0] * len(self._lanes)
            self._lasts = [0] * len(self._lanes)
        rows = await self._session.rows(
            statement("follow_lanes"),
            {
                "lanes": [lane.id for lane in self._lanes],
                "file_no": self._lanes[0].file_no,
                "lane_nos": [lane.lane_no for lane in self._lanes],
                "cursors": self._cursors,
                "lasts": self._lasts,
            },
        )
        self._cursors = [cursor for cursor, _, _ in rows]
        self._lasts = [last for _, last, _ in rows]
        unfinished = [line_no for _, _, line_no in rows if line_no is not None]
        return min(unfinished) - 1 if unfinished else max(self._lasts)
