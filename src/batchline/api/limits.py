"""Bodies that are read whole are small and come soon; others are streamed by the routes that take them.

Nobody is waited for without end: neither for what is asked, nor for what is answered.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from batchline.api.errors import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# A body that is read whole comes within this time, from its first byte to its last.
BODY_WITHIN = 60.0
# Who takes nothing of an answer for this long has gone, or holds a place for nothing.
TAKEN_WITHIN = 60.0
# Who has been waited for this long in all must have been worth it: bytes per second, as for what comes in.
PATIENCE = 120.0
MIN_RATE = 1024
# What is given to the server at once, which keeps it until the client takes it.
BLOCK = 64 * 1024

# These limit what they take themselves, while they take it.
_STREAMED = re.compile(r"/v1/files/?|/v1/uploads/[^/]+/parts/?")


class Stalled(Exception):
    """The client does not take what it is answered."""


class Patience:
    """Gives every answer out in small blocks, and gives up on who does not read it, or hardly does."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taking = _Taking(send)
        await self._app(scope, receive, taking.send)


class _Taking:
    """How a client takes one answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._size = 0
        self._waited = 0.0

    async def send(self, message: Message) -> None:
        body = message.get("body", b"")
        # The server keeps what a client does not take, so it is given no more than a block at once.
        for start in range(0, len(body) - BLOCK, BLOCK):
            part = body[start : start + BLOCK]
            await self._in_time({"type": message["type"], "body": part, "more_body": True})
        if len(body) > BLOCK:
            message = {**message, "body": body[(len(body) - 1) // BLOCK * BLOCK :]}
        await self._in_time(message)

    async def _in_time(self, message: Message) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(TAKEN_WITHIN):
                await self._send(message)
        except TimeoutError:
            raise Stalled(f"nothing was taken for {TAKEN_WITHIN:g} s") from None
        self._size += len(message.get("body", b""))
        self._waited += time.monotonic() - began
        if self._waited > PATIENCE and self._size < self._waited * MIN_RATE:
            raise Stalled(f"only {self._size:,} bytes were taken in {self._waited:.0f} s")


class BodyLimit:
    """Refuses a body that is said to be too large, and stops reading one that is, or that is too slow."""

    def __init__(self, app: App, maximum: int, unread: Callable[[Message], None]) -> None:
        self._app = app
        self._maximum = maximum
        self._unread = unread

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _STREAMED.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if said.isdigit() and int(said) > self._maximum:
            self._unread(scope)
            message = f"The body has {int(said)} bytes; at most {self._maximum} are allowed."
            refusal = ApiError(413, message, code="body_too_large").response()
            await refusal(scope, receive, send)
            return
        left = self._maximum
        whole = False
        until = time.monotonic() + BODY_WITHIN

        async def limited() -> Message:
            nonlocal left, whole
            if whole:
                # What follows the body is the client's leaving, which may take as long as it likes.
                return await receive()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body did not come within {BODY_WITHIN:g} s.") from None
            whole = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {self._maximum} bytes.")
            return message

        await self._app(scope, limited, send)
