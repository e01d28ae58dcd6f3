"""Spans that this worker holds in the database without knowing it, and how they are found again.

A claim may have been carried out though its answer never came; a batch's creator may have claimed for this
worker in a notification that it never heard. The heartbeat would keep such spans alive for ever. So, once
track was lost, all that is not known here is freed, before anything else is claimed.
"""

from collections.abc import Callable
from uuid import UUID

from batchline.store import spans
from batchline.store.session import Session


class Strays:
    """`known_spans` are those of all items that are somewhere in this worker."""

    def __init__(self, known_spans: Callable[[], set[int]]) -> None:
        self._known_spans = known_spans
        self._lost_track = False
        self._turned_away = False
        self._freed: set[int] = set()

    def lost_track(self) -> None:
        """Something may be held that is not known here."""
        self._lost_track = True

    def may_take(self, span_id: int) -> bool:
        """Whether a span that the worker was told of is still its own.

        Not one that was freed before the word of it came. Nor any while strays are to be freed: it may be one
        of them already, or too new to be, and is then freed with the next ones.
        """
        if span_id in self._freed:
            self._freed.remove(span_id)
            return False
        if self._lost_track:
            self._turned_away = True
            return False
        return True

    async def release(self, session: Session, worker_id: UUID) -> None:
        """Free them, if track was lost. The caller keeps all claims of this worker away meanwhile."""
        if self._lost_track:
            self._turned_away = False
            self._freed |= await spans.release_strays(session, worker_id, self._known_spans())
            self._lost_track = self._turned_away
