"""Drain a batch of any design: claim a chunk, finish a random chunk of those held, until none is left."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Protocol, TypeVar

from batchline.model import Completed, Item
from batchline.model.ids import new_id
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from benchmarks.inputs import OUTPUT, USAGE

CHUNK = 500
LEASE = timedelta(minutes=10)
# A worker holds several claims, and answers come in any order.
_CHUNKS_IN_HAND = 4

Work = TypeVar("Work")


class Design(Protocol[Work]):
    """A design of a queue: returns items with their bodies, and accepts one result text per item."""

    async def claim(self, limit: int) -> Sequence[Work]: ...

    async def settle(self, finished: Sequence[Work]) -> None: ...


class CursorAndSpans:
    """Batchline's statements, as a worker calls them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._worker = WorkerId(new_id(), "benchmark", LEASE)

    async def claim(self, limit: int) -> Sequence[Item]:
        claims = await spans.claim(self._session, self._worker, Scope(), limit)
        return await spans.fetch(self._session, self._worker.id, claims) if claims else []

    async def settle(self, finished: Sequence[Item]) -> None:
        verdicts = [Completed(item, 200, OUTPUT, USAGE) for item in finished]
        await spans.settle(self._session, self._worker.id, verdicts)


@dataclass(frozen=True, slots=True)
class Drained:
    items: int
    # Of each pair of a claim and a settle.
    seconds: list[float]
    chunk: int = CHUNK

    @property
    def rate(self) -> float:
        return self.items / sum(self.seconds)

    def tenth(self, nth: int) -> float:
        """Items per second in the nth tenth of the pairs, counted from 0.

        The first pairs, which only fill the buffer, and the last, which find nothing to claim, are excluded.
        """
        pairs = self.seconds[_CHUNKS_IN_HAND:-_CHUNKS_IN_HAND]
        size = len(pairs) // 10
        return size * self.chunk / sum(pairs[nth * size : (nth + 1) * size])


async def drain(design: Design[Work], chunk: int = CHUNK) -> Drained:
    """Drain the batch. Only claims and settles are timed, not the shuffling."""
    shuffle = random.Random(0).shuffle
    hand: list[Work] = []
    items = 0
    seconds: list[float] = []
    while True:
        begun = perf_counter()
        claimed = await design.claim(chunk)
        elapsed = perf_counter() - begun
        hand.extend(claimed)
        shuffle(hand)
        if len(hand) >= _CHUNKS_IN_HAND * chunk or not claimed:
            finished, hand = hand[:chunk], hand[chunk:]
            if not finished:
                return Drained(items, seconds, chunk)
            begun = perf_counter()
            await design.settle(finished)
            elapsed += perf_counter() - begun
            items += len(finished)
        seconds.append(elapsed)
