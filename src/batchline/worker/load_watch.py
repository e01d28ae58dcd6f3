"""Asks upstreams for their load while requests are in flight there, beside the requests themselves."""

import asyncio

from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.service import Service

# An upstream may be asked less often.
_LOOK_EVERY = 1.0


class LoadWatch(Service):
    """Always idle: a worker need not wait for it to drain or to stop."""

    name = "load watch"

    def __init__(self, upstreams: Upstreams) -> None:
        super().__init__()
        self._upstreams = upstreams

    def wake(self) -> None:
        """Nothing to do: it looks by itself, and stays idle."""
        return

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await self._upstreams.read_loads()
