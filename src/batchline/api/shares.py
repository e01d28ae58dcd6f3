"""Each tenant's share of the connections that searches may use at once.

Searches of the dashboard may look at thousands of rows. Without a share, one user could hold all connections
of the server with them, and everybody else would wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, Request

from batchline.api.auth import Called
from batchline.api.errors import ApiError
from batchline.governance.access import Actor

# Of the server's connections, one tenant gets a quarter, and one user half of that.
_PARTS_PER_TENANT = 4
_PARTS_PER_USER = 8
# Seconds that a request waits for earlier ones of its tenant.
_PATIENCE = 10.0


class Shares:
    """Counts the searches that run, by user and by tenant."""

    def __init__(self, connections: int, *, patience: float = _PATIENCE) -> None:
        self._per_tenant = max(1, connections // _PARTS_PER_TENANT)
        self._per_user = max(1, connections // _PARTS_PER_USER)
        self._patience = patience
        self._slots: dict[tuple[str, str | None], _Slots] = {}

    @asynccontextmanager
    async def of(self, actor: Actor) -> AsyncIterator[None]:
        """Wait for a free slot. Raises a 429."""
        async with (
            self._slot((actor.tenant, actor.user), self._per_user),
            self._slot((actor.tenant, None), self._per_tenant),
        ):
            yield

    @asynccontextmanager
    async def _slot(self, name: tuple[str, str | None], number: int) -> AsyncIterator[None]:
        slots = self._slots.setdefault(name, _Slots(number))
        slots.users += 1
        try:
            await self._wait(slots)
            try:
                yield
            finally:
                slots.free.release()
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[name]

    async def _wait(self, slots: "_Slots") -> None:
        try:
            async with asyncio.timeout(self._patience):
                await slots.free.acquire()
        except TimeoutError:
            message = "Too many searches of your tenant run at once. Try again in a second."
            headers = {"retry-after": "1"}
            raise ApiError(
                429, message, code="too_many_searches", type="rate_limit_error", headers=headers
            ) from None


class _Slots:
    def __init__(self, number: int) -> None:
        self.free = asyncio.Semaphore(number)
        # Requests that hold one or wait for one.
        self.users = 0


async def _within_share(request: Request, caller: Called) -> AsyncIterator[None]:
    shares: Shares = request.app.state.shares
    async with shares.of(caller):
        yield


# It ends with the call, and does not wait for a slow reader.
WithinShare = Depends(_within_share, scope="function")
