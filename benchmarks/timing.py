"""Measure elapsed time."""

from collections.abc import Awaitable
from time import perf_counter


async def seconds(act: Awaitable[object]) -> float:
    begun = perf_counter()
    await act
    return perf_counter() - begun


async def milliseconds(act: Awaitable[object]) -> float:
    return 1000 * await seconds(act)
