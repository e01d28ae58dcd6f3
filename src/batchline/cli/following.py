"""`run --follow`: the output in input order while the batch runs.

A line appears when all lines before it have ended.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from uuid import UUID

from batchline.store import outputs
from batchline.store.following import Following
from batchline.store.outputs import Which
from batchline.store.session import Session
from batchline.tables.merging import merged

_LOOK = 0.25


async def followed_lines(
    session: Session, batch_id: UUID, which: Sequence[Which], over: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Lines of these kinds, until `over` is set and all lines that can be given have been given."""
    following, after = Following(session, batch_id), 0
    while True:
        last_look = over.is_set()
        until = await following.finished()
        if until > after:
            async with aclosing(_between(session, batch_id, which, after, until)) as blocks:
                async for block in blocks:
                    yield block
            after = until
        elif last_look:
            break
        else:
            await _wait(over)
    # In a batch that was cancelled or has expired, lines never ran, and others may have ended after them.
    if (await outputs.find_lanes(session, batch_id))[0].ending is None:
        return
    async with aclosing(_between(session, batch_id, which, after, None)) as blocks:
        async for block in blocks:
            yield block


async def _between(
    session: Session, batch_id: UUID, which: Sequence[Which], after: int, until: int | None
) -> AsyncGenerator[bytes, None]:
    async with AsyncExitStack() as stack:
        streams = []
        for each in which:
            lines = await outputs.lines(session, batch_id, each, after=after, until=until)
            streams.append(await stack.enter_async_context(aclosing(aiter(lines))))
        if len(streams) == 1:
            async for block in streams[0]:
                yield block
            return
        async with aclosing(merged(*streams)) as merged_lines:
            async for some in merged_lines:
                yield b"".join(line + b"\n" for line in some.lines)


async def _wait(over: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_LOOK):
            await over.wait()
    except TimeoutError:
        return
