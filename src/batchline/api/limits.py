"""Limits on the size and time of request bodies, and on the time that a client takes to read an answer.

Routes that stream uploads enforce their own limits (`openai/multipart.py`).
"""

import asyncio
import re
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchline.api.errors import ApiError

# Seconds for a whole body.
BODY_WITHIN = 60.0
# Seconds without any progress before an answer is aborted.
TAKEN_WITHIN = 60.0
# After this many seconds of waiting in total, a client must have read this many bytes per second.
PATIENCE = 120.0
MIN_RATE = 1024
# Bytes handed to uvicorn at once. It keeps them in memory until the client reads them.
BLOCK = 64 * 1024

# These routes stream the body and limit it themselves.
_STREAMED = re.compile(r"/v1/files/?|/v1/uploads/[^/]+/parts/?")


class Stalled(Exception):
    """The client does not read its answer."""


class SlowReaders:
    """Middleware that sends answers in small blocks and aborts those whose client reads too slowly."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _SlowReader(send).send)


class _SlowReader:
    """The client of one answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._size = 0
        self._waited = 0.0

    async def send(self, message: Message) -> None:
        body = message.get("body", b"")
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
            raise Stalled(f"the client read nothing for {TAKEN_WITHIN:g} s") from None
        self._size += len(message.get("body", b""))
        self._waited += time.monotonic() - began
        if self._waited > PATIENCE and self._size < self._waited * MIN_RATE:
            raise Stalled(f"the client read only {self._size:,} bytes in {self._waited:.0f} s")


class BodyLimit:
    """Middleware that refuses bodies that are too large or too slow."""

    def __init__(self, app: ASGIApp, maximum: int, unread: Callable[[Scope], None]) -> None:
        self._app = app
        self._maximum = maximum
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _STREAMED.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > self._maximum:
            self._unread(scope)
            message = f"The body has {int(announced)} bytes; at most {self._maximum} are allowed."
            refusal = ApiError(413, message, code="body_too_large").response()
            await refusal(scope, receive, send)
            return
        left = self._maximum
        whole = False
        until = time.monotonic() + BODY_WITHIN

        async def limited() -> Message:
            nonlocal left, whole
            if whole:
                # After the body, the only message is the disconnect, which has no time limit.
                return await receive()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body did not arrive within {BODY_WITHIN:g} s.") from None
            whole = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {self._maximum} bytes.")
            return message

        await self._app(scope, limited, send)
