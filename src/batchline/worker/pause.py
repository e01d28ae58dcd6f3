"""A pause between tries that grows while they fail."""

import asyncio
import random


class Pause:
    """Full jitter: any time up to the limit, which doubles with each wait."""

    def __init__(self, first: float = 0.05, maximum: float = 5.0) -> None:
        self._first = first
        self._maximum = maximum
        self._limit = first

    def reset(self) -> None:
        self._limit = self._first

    async def wait(self) -> None:
        await asyncio.sleep(random.uniform(self._first / 2, self._limit))
        self._limit = min(self._limit * 2, self._maximum)
