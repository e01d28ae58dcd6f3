"""A Python app for benchmarks. Workers run it by `batchline worker benchmarks.python_app:app`."""

from time import process_time

from batchline import Batchline, Context
from benchmarks.contestants.protocol import Payload

_MILLISECOND = 0.001

app = Batchline()


@app.operation
async def nothing(item: Payload) -> None:
    pass


@app.operation
async def burn(nth: int) -> int:
    """Use a millisecond of CPU."""
    until, turns = process_time() + _MILLISECOND, 0
    while process_time() < until:
        turns += 1
    return turns


@app.operation
async def third(item: Payload) -> None:
    pass


@app.operation(emits=[third])
async def second(item: Payload, ctx: Context) -> None:
    await ctx.emit(third, item)


@app.operation(emits=[second])
async def first(item: Payload, ctx: Context) -> None:
    await ctx.emit(second, item)
