"""Reads the lines of a chunk, and settles verdicts on them.

Lines are read in pages, so that a chunk of any size takes little memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from uuid import UUID

from batchline.model import Claim, Item, Verdict
from batchline.store import provider_chunks
from batchline.store.session import Session
from batchline.worker.settler import Settler
from batchline.worker.tasks import first

# Lines of one page, and about how many bytes of bodies it has.
_PAGE = 500
_PAGE_BYTES = 4 * 2**20


class ChunkLines:
    """The lines of one chunk, which this worker holds. `claim` is what verdicts are on."""

    def __init__(self, session: Session, settler: Settler, worker_id: UUID, claim: Claim) -> None:
        self._session = session
        self._settler = settler
        self._worker_id = worker_id
        self.claim = claim
        # Verdicts that are not stored yet.
        self._unsettled = 0
        self._settled = asyncio.Event()

    async def all(self, average: float = 0.0) -> AsyncIterator[Item]:
        """The lines without a verdict, with bodies if their `average` size is given."""
        page = _PAGE if not average else max(1, min(_PAGE, int(_PAGE_BYTES / average)))
        for some in _pages(_numbers(await self.left()), page):
            for item in await self.read(some, bodies=average > 0):
                yield item

    async def left(self) -> list[tuple[int, int]]:
        """First and last ordinals of the lines without a verdict."""
        return await provider_chunks.ordinals(self._session, self._worker_id, self.claim.span_id)

    async def read(self, ordinals: Sequence[int], *, bodies: bool = False) -> list[Item]:
        """Those of these lines that have no verdict yet."""
        return await provider_chunks.lines(self._session, self.claim, ordinals, bodies=bodies)

    async def settle(self, verdicts: Sequence[Verdict]) -> None:
        """Wait until these verdicts are stored."""
        if not verdicts:
            return
        self._settled.clear()
        self._unsettled += len(verdicts)
        for verdict in verdicts:
            self._settler.add(verdict)
        self._settler.wake()
        # An idle settler has none left, also if it could not store one.
        await first(self._settled.wait(), self._settler.idle.wait())
        self._unsettled = 0

    async def settle_all(self, decide: Callable[[Item], Verdict]) -> int:
        """Settle all lines that have no verdict, and return how many these are."""
        count = 0
        for some in _pages(_numbers(await self.left()), _PAGE):
            verdicts = [decide(item) for item in await self.read(some)]
            await self.settle(verdicts)
            count += len(verdicts)
        return count

    def stored(self, verdicts: int) -> None:
        """So many verdicts on these lines are stored."""
        self._unsettled -= verdicts
        if self._unsettled <= 0:
            self._settled.set()


def _numbers(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    for start, last in ranges:
        yield from range(start, last + 1)


def _pages(numbers: Iterator[int], size: int) -> Iterator[list[int]]:
    page: list[int] = []
    for number in numbers:
        page.append(number)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page
