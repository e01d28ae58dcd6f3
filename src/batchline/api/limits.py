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
# Who takes nothing of an answer for this long has gone, or holds a connection to the database for nothing.
TAKEN_WITHIN = 60.0

# These limit what they take themselves, while they take it.
_STREAMED = re.compile(r"/v1/files/?|/v1/uploads/[^/]+/parts/?")


class Stalled(Exception):
    """The client does not take what it is answered."""


class Patience:
    """Gives up on who does not read its answer."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def impatient(message: Message) -> None:
            try:
                async with asyncio.timeout(TAKEN_WITHIN):
                    await send(message)
            except TimeoutError:
                raise Stalled(f"nothing was taken for {TAKEN_WITHIN:g} s") from None

        await self._app(scope, receive, impatient)


class BodyLimit:
    """Refuses a body that is said to be too large, and stops reading one that is, or that is too slow."""

    def __init__(self, app: App, most: int, unread: Callable[[Message], None]) -> None:
        self._app = app
        self._most = most
        self._unread = unread

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _STREAMED.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if said.isdigit() and int(said) > self._most:
            self._unread(scope)
            message = f"The body has {int(said)} bytes; at most {self._most} are allowed."
            refusal = ApiError(413, message, code="body_too_large").response()
            await refusal(scope, receive, send)
            return
        left = self._most
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
                raise HTTPException(413, f"The body has more than {self._most} bytes.")
            return message

        await self._app(scope, limited, send)
