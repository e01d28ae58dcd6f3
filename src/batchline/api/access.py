"""One log line for each request, and an id to find it by. Neither headers nor queries: they may hold keys."""

import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from batchline.ids import new_id

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# What somebody pasted into a path by mistake.
_SECRET = re.compile(r"(bl-|sk-|whsec_)[^/]+")
_log = structlog.get_logger("batchline.access")


class AccessLog:
    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{new_id().hex}"
        started = time.perf_counter()
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            _log.info(
                "request",
                method=scope["method"],
                path=_SECRET.sub(r"\1…", scope["path"]),
                status=status or None,
                milliseconds=round((time.perf_counter() - started) * 1000, 1),
                request_id=request_id,
            )
