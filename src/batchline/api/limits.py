"""Bodies that are read whole are small; those of any size are streamed by the routes that take them."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from batchline.api.errors import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# These limit what they take themselves, while they take it.
_STREAMED = re.compile(r"/v1/files/?|/v1/uploads/[^/]+/parts/?")


class BodyLimit:
    """Refuses a body that is said to be too large, and stops reading one that turns out to be."""

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _STREAMED.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if said.isdigit() and int(said) > self._most:
            message = f"The body has {int(said)} bytes; at most {self._most} are allowed."
            refusal = ApiError(413, message, code="body_too_large").response()
            await refusal(scope, receive, send)
            return
        left = self._most

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {self._most} bytes.")
            return message

        await self._app(scope, limited, send)
