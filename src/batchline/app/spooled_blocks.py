"""Blocks of items that are read to their end before the first of them is stored.

A transaction that stores them does not wait for their source then. What does not fit into memory waits in a
temporary file.
"""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import IO

import msgspec

from batchline.app.item_blocks import ItemBlock

_IN_MEMORY = 16 * 2**20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ItemBlock).decode


@asynccontextmanager
async def spooled(blocks: AsyncIterable[ItemBlock]) -> AsyncIterator[AsyncIterator[ItemBlock]]:
    """The same blocks, once all of them have been read."""
    with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        sizes = [file.write(_encode(block)) async for block in blocks]
        file.seek(0)
        yield _read(file, sizes)


async def _read(file: IO[bytes], sizes: list[int]) -> AsyncIterator[ItemBlock]:
    for size in sizes:
        yield _decode(file.read(size))
