"""Access log: one line and one id per request. Headers and queries are not logged, as they may contain keys.

Unexpected errors are answered here too, so that their answers also have the id.
"""

import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchline.api.errors import safe_path, unexpected
from batchline.api.limits import Stalled
from batchline.model.ids import new_id

_log = structlog.get_logger("batchline.access")


class AccessLog:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{new_id().hex}"
        started = time.perf_counter()
        status = 0

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, with_id)
        except Stalled as error:
            _log.info("answer aborted", reason=str(error), request_id=request_id)
        except Exception:  # noqa: BLE001
            # If an answer has begun, uvicorn sees that it does not end, and closes the connection.
            _log.exception("request failed", request_id=request_id)
            if not status:
                await unexpected().response()(scope, receive, with_id)
        finally:
            _log.info(
                "request",
                method=scope["method"],
                path=safe_path(scope["path"]),
                status=status or None,
                milliseconds=round((time.perf_counter() - started) * 1000, 1),
                request_id=request_id,
            )
