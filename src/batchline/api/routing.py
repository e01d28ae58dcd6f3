"""Routes that authenticate before they read the body, refuse unknown query parameters, and decode large
bodies in a thread.

FastAPI decodes the body before it runs dependencies, so without this an unauthenticated client could make the
server decode megabytes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from batchline.api.auth import authenticate
from batchline.api.errors import ApiError
from batchline.model import Role
from batchline.model.json_limits import (
    MAX_DEPTH,
    MAX_VALUES,
    WRAPPED,
    has_too_many_values,
    is_too_deep,
    why_not_json,
)

# Smaller bodies are decoded faster than a thread starts.
_LARGE = 16 * 1024
# Bytes of a body without authentication.
_MAX_PUBLIC = 4 * 1024
# No call has that many parameters, and each unknown one costs time.
_MAX_KEYS = 100
# Characters of an unknown parameter's name that an error repeats.
_MAX_NAME = 64


class AuthenticatedRoute(APIRoute):
    """For all routes that require authentication. Keys for monitoring are refused."""

    for_monitors = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = sorted(_query_parameters(self.dependant))

        async def authenticated(request: Request) -> Response:
            caller = request.state.caller = await authenticate(request)
            if caller.role is Role.MONITOR and not self.for_monitors:
                raise not_for_monitors()
            _check_query(request, known)
            return await handle(JsonRequest(request.scope, request.receive))

        return authenticated


class MonitoringRoute(AuthenticatedRoute):
    """For routes that keys for monitoring may call, too."""

    for_monitors = True


def not_for_monitors() -> ApiError:
    message = "A key with the role monitor may read only /metrics and /api/v1/demand."
    return ApiError(403, message, code="PERMISSION_DENIED")


class PublicRoute(APIRoute):
    """For routes that need no authentication: the same rules for queries and bodies, which are small."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = sorted(_query_parameters(self.dependant))

        async def checked(request: Request) -> Response:
            _check_query(request, known)
            return await handle(JsonRequest(request.scope, _small(request.receive)))

        return checked


def _small(receive: Receive) -> Receive:
    """A body that nobody has authenticated costs little to read."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > _MAX_PUBLIC:
            raise HTTPException(413, f"The body has more than {_MAX_PUBLIC} bytes.")
        return message

    return limited


def _query_parameters(dependant: Dependant) -> set[str]:
    """The names of the query parameters of a route and its dependencies."""
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*map(_query_parameters, dependant.dependencies))


def _check_query(request: Request, known: Sequence[str]) -> None:
    """A misspelt filter must not return everything."""
    for name in request.query_params:
        if name not in known:
            fault = {"type": "extra_forbidden", "loc": ("query", name[:_MAX_NAME]), "ctx": {"known": known}}
            raise RequestValidationError([fault])


class JsonRequest(Request):
    """A request whose body is JSON within limits."""

    async def json(self) -> Any:
        body = await self.body()
        return _decoded(body) if len(body) <= _LARGE else await asyncio.to_thread(_decoded, body)


def _decoded(body: bytes) -> Any:
    if is_too_deep(body, MAX_DEPTH + WRAPPED):
        raise HTTPException(400, f"The body is nested more than {MAX_DEPTH + WRAPPED} levels deep.")
    if has_too_many_values(body):
        raise HTTPException(400, f"The body has more than {MAX_VALUES:,} values.")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        why = why_not_json(body)
        raise HTTPException(400, f"The body is not valid JSON{f': {why}' if why else ''}.") from None
    _check_keys(value)
    return value


def _check_keys(value: Any) -> None:
    for each in (value, *value.values()) if isinstance(value, dict) else ():
        if isinstance(each, dict) and len(each) > _MAX_KEYS:
            raise HTTPException(400, f"An object in the body has more than {_MAX_KEYS} keys.")
