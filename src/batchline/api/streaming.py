"""Streamed answers: each holds a download slot, and is an attachment that no browser interprets."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from urllib.parse import quote

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

Blocks = AsyncGenerator[bytes]

MEDIA_TYPE = "application/octet-stream"


class Streamed(StreamingResponse):
    """A response that holds a download slot, and frees everything when the client disconnects.

    It reads the first block before the answer begins, so unreadable content is an error response.
    """

    def __init__(
        self,
        slot: AbstractAsyncContextManager[None],
        blocks: Blocks,
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(blocks, status, headers, MEDIA_TYPE)
        self._slot = slot
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._blocks), self._slot:
            # Not in a variable: a slow reader would keep the block in memory until the end.
            self.body_iterator = _begun(await anext(self._blocks, b""), self._blocks)
            await super().__call__(scope, receive, send)


async def _begun(first: bytes, blocks: Blocks) -> Blocks:
    yield first
    del first
    async for block in blocks:
        yield block


def attachment(filename: str) -> dict[str, str]:
    """The headers of a download. The name twice (RFC 6266): in ASCII for all clients, and unchanged."""
    plain = re.sub(r"[^ !#-\[\]-~]", "_", filename)
    exact = quote(filename, safe="")
    return {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}",
        "x-content-type-options": "nosniff",
    }
