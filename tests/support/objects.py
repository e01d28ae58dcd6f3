"""Content for an object store, and what the store holds."""

import asyncio
from collections.abc import AsyncIterator

from batchline.files.objects import Objects

KEY = "outputs/batch/file.jsonl"
MIB = 1024 * 1024
LARGE = 20  # MiB: more than two parts of an upload


async def blocks(*content: bytes) -> AsyncIterator[bytes]:
    for block in content:
        yield block


async def keys(objects: Objects, prefix: str = "outputs/") -> list[str]:
    return sorted([found.key async for page in objects.pages(prefix) for found in page])


async def content(objects: Objects, key: str = KEY) -> bytes:
    return b"".join([block async for block in objects.read(key)])


class Source:
    """A large upload that stops half-way, until it is told how to go on."""

    def __init__(self) -> None:
        self.half_way = asyncio.Event()
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(LARGE):
            yield b"x" * MIB
        self.half_way.set()
        await self.go_on.wait()
        if self.error:
            raise self.error
        yield b"end"
