"""How many bytes of requests and answers a worker may hold.

A quarter is for requests, shared by the producers (worker/buffer.py), and a quarter for small answers. Small
answers never wait, so large ones delay no other. An answer is small if such answers fill at most half of that
quarter when every runner receives one at once. While the other half is full of small answers that wait to be
settled, nothing is sent.

The rest is for large answers, until they are settled. Such an answer takes its bytes piece by piece, as it is
read. When there are none left, reading pauses, and the connection's flow control holds the upstream.
Half-read answers cannot deadlock: as many bytes as the largest answer has stay in reserve, and one answer at
a time, the one that waits longest, may use them to be read to its end. Then it is settled, which frees its
bytes for the next one. An upstream that stops in the middle of an answer cannot hold them for long: each step
has a time limit (`HttpSettings.piece_timeout`).
"""

import asyncio
from collections import deque
from types import TracebackType

MIB = 2**20
_LARGEST_SMALL = MIB
# What a small answer takes at least, with the objects around it: no more than 16,384 wait with 512 MiB.
MIN_HELD = 4096
# A large answer asks for this much at a time.
STEP = MIB


class BodyMemory:
    """`limit` bytes in all. `runners` is how many requests can be in flight at once, and `largest` how long
    an answer may be; none is longer than all there is for large ones."""

    def __init__(self, limit: int, runners: int = 64, largest: int = 64 * MIB) -> None:
        self.for_requests = limit // 4
        self._crowded_from = limit // 8
        self._limit = limit // 2
        self.largest = min(largest, self._limit)
        self._unreserved = self._limit - self.largest
        self.small = max(1, min(_LARGEST_SMALL, self._crowded_from // runners, self.largest))
        # Bytes of small answers, and of large ones.
        self.held_small = 0
        self.held_large = 0
        self.held_requests = 0
        self._waiting: deque[_MemoryRequest] = deque()
        # The answer that may use the reserve.
        self._first: Share | None = None
        self._granting = False
        self._room = asyncio.Event()
        self._stopping = False

    @property
    def room_for_requests(self) -> int:
        return self.for_requests - self.held_requests

    @property
    def crowded(self) -> bool:
        """Whether so many answers wait to be settled that no more requests should be sent."""
        return self.held_small > self._crowded_from

    async def room(self) -> None:
        """Wait while it is crowded, unless the worker stops."""
        while self.crowded and not self._stopping:
            self._room.clear()
            await self._room.wait()

    def wind_down(self) -> None:
        """The worker stops: no request waits for memory any more."""
        self._stopping = True
        self._room.set()

    def hold(self, size: int) -> None:
        """Count an answer."""
        if size > self.small:
            self.held_large += size
        else:
            self.held_small += max(size, MIN_HELD)

    def free(self, size: int) -> None:
        """Stop counting an answer."""
        if size > self.small:
            self._free_large(size)
        else:
            self.held_small -= max(size, MIN_HELD)
            if not self.crowded:
                self._room.set()

    def share(self) -> "Share":
        """For one answer, while it is received."""
        return Share(self)

    async def take(self, share: "Share", size: int) -> None:
        if share is self._first or (not self._waiting and self.held_large + size <= self._unreserved):
            self._give(share, size)
            return
        request = _MemoryRequest(share, size)
        self._waiting.append(request)
        self._grant()
        try:
            await request.granted
        except asyncio.CancelledError:
            # Others may have waited behind this one only.
            self._grant()
            raise

    def leave(self, share: "Share") -> None:
        """The answer was read, or abandoned."""
        if share is self._first:
            self._first = None
        self._free_large(share.size)

    def _free_large(self, size: int) -> None:
        self.held_large -= size
        if self._waiting and not self._granting:
            # Not at once: an answer that was read leaves, and the settler holds it right after.
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._granting = False
        while self._waiting:
            request = self._waiting[0]
            if not request.granted.done():
                if not self._may_have(request.share, request.size):
                    return
                self._give(request.share, request.size)
                request.granted.set_result(None)
            self._waiting.popleft()

    def _may_have(self, share: "Share", size: int) -> bool:
        if self.held_large + size <= self._unreserved:
            return True
        if self._first is None and self.held_large - share.size <= self._unreserved:
            self._first = share
        return share is self._first

    def _give(self, share: "Share", size: int) -> None:
        share.size += size
        self.held_large += size


class Share:
    """The bytes of one large answer while it is read; then the settler counts them."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.size = 0

    def __enter__(self) -> "Share":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size:
            self._memory.leave(self)

    async def grow(self, size: int) -> None:
        """Wait for so many bytes more."""
        await self._memory.take(self, size)


class _MemoryRequest:
    __slots__ = ("granted", "share", "size")

    def __init__(self, share: Share, size: int) -> None:
        self.share = share
        self.size = size
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
