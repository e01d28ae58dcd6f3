"""Errors as OpenAI's clients expect them: {"error": {message, type, param, code}}, always all four keys."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from batchline.api.database_disk import DatabaseDisk
from batchline.files.objects import ObjectStoreFull, ObjectStoreUnavailable
from batchline.store.session import (
    StatementRefused,
    StorageQuotaExceeded,
    StoreFull,
    StoreUnavailable,
    TenantClosed,
)

# Without this header, OpenAI's clients repeat a POST on 408, 409, 429 and 5xx.
NO_RETRY = {"x-should-retry": "false"}

_Answer = Callable[[Request, Exception], Awaitable[JSONResponse]]

_RETRY_AFTER = {"retry-after": "1"}
# 507 is more exact, but clients and proxies know how to handle 503.
_RETRY_DISK_FULL = {"retry-after": "30"}
_GOVERNED = "/api/v1/"
# A key that was pasted into a path by mistake.
_SECRET = re.compile(r"(bl-|sk-|whsec_)[^/]+")
_log = structlog.get_logger("batchline.api")


class ApiError(Exception):
    """An error response. The message is for a person."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type
        self.headers = dict(headers or {})
        # In addition to the four keys that every error has.
        self.more = dict(more or {})

    def response(self) -> JSONResponse:
        error = {
            "message": _encodable(self.message),
            "type": self.type,
            "param": None if self.param is None else _encodable(self.param),
            "code": self.code,
            **self.more,
        }
        return JSONResponse({"error": error}, self.status, self.headers)


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(BaseModel):
    error: ErrorBody


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: these statuses, and those that any route may return."""
    return {status: {"model": ErrorEnvelope} for status in sorted({*statuses, 400, 401, 408, 500, 503})}


def not_found(kind: str, displayed: str, param: str | None = None) -> ApiError:
    """Also for objects of other tenants, so that callers cannot find out whether they exist."""
    return ApiError(404, f"No such {kind}: {_short(displayed)}", code="not_found", param=param)


def handle_errors(app: FastAPI, unread: Callable[[Scope], None]) -> None:
    """`unread` is called for each request that the framework refuses before its route runs."""

    def counted(answer: _Answer) -> _Answer:
        async def handler(request: Request, error: Exception) -> JSONResponse:
            unread(request.scope)
            return await answer(request, error)

        return handler

    app.add_exception_handler(ApiError, _reported)
    app.add_exception_handler(RequestValidationError, counted(_invalid))
    app.add_exception_handler(HTTPException, counted(_http))
    app.add_exception_handler(StoreUnavailable, _unavailable)
    app.add_exception_handler(ObjectStoreUnavailable, _unavailable)
    app.add_exception_handler(StoreFull, _database_full)
    app.add_exception_handler(ObjectStoreFull, _full)
    app.add_exception_handler(StatementRefused, _refused)
    app.add_exception_handler(StorageQuotaExceeded, _quota_exceeded)
    app.add_exception_handler(TenantClosed, _tenant_closed)


async def _reported(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.response()


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    location, kind = first["loc"], first["type"]
    if kind == "json_invalid":
        code = _code(request, "invalid_json")
        return ApiError(400, "The body is not valid JSON.", code=code).response()
    param = ".".join(str(part) for part in location[1:]) or None
    match kind:
        case "missing":
            code, message = (
                "missing_required_parameter",
                f"Missing required parameter: '{param or location[0]}'.",
            )
        case "extra_forbidden":
            code, message = "unknown_parameter", f"Unknown parameter: '{param}'.{_known(first)}"
        case _:
            code, message = "invalid_value", f"Invalid '{param or location[0]}': {first['msg']}."
    return ApiError(400, _short(message, 500), code=_code(request, code), param=param).response()


def _known(fault: Mapping[str, Any]) -> str:
    """Which query parameters there are, for an error about one that does not exist."""
    if fault["loc"][0] != "query":
        return ""
    known = fault["ctx"]["known"]
    return (
        f" Query parameters here: {', '.join(known)}." if known else " This path takes no query parameters."
    )


async def _http(request: Request, error: Exception) -> JSONResponse:
    """Errors that the framework raises."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            reported = ApiError(404, f"Unknown request URL: {request.method} {_short(request.url.path)}")
            reported.code = "unknown_url"
        case 405:
            reported = ApiError(405, f"{request.method} is not allowed for {_short(request.url.path)}")
            reported.code = "method_not_allowed"
        case 400:
            # For example JSON that is nested too deep.
            reported = ApiError(400, str(error.detail), code=_code(request, "invalid_json"))
        case 413:
            reported = ApiError(413, str(error.detail), code="body_too_large")
        case status:
            kind = "server_error" if status >= 500 else "invalid_request_error"
            reported = ApiError(status, str(error.detail), type=kind)
    reported.headers.update(error.headers or {})
    return reported.response()


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    _log.warning("cannot serve", path=safe_path(request.url.path), reason=str(error))
    message = "The server cannot reach its database or object store. Try again in a second."
    return ApiError(503, message, code="unavailable", type="server_error", headers=_RETRY_AFTER).response()


async def _database_full(request: Request, error: Exception) -> JSONResponse:
    disk: DatabaseDisk = request.app.state.context.disk
    disk.refused()
    return await _full(request, error)


async def _full(request: Request, error: Exception) -> JSONResponse:
    _log.error("disk full", path=safe_path(request.url.path), reason=str(error))
    message = "The server's disk is full, so nothing was stored. Try again when the operator has freed space."
    return ApiError(503, message, code="disk_full", type="server_error", headers=_RETRY_DISK_FULL).response()


async def _refused(request: Request, error: Exception) -> JSONResponse:
    code = _code(request, "invalid_value")
    return ApiError(
        400, "A value contains a character that cannot be stored, such as NUL.", code=code
    ).response()


async def _quota_exceeded(request: Request, error: Exception) -> JSONResponse:
    """400, as OpenAI answers when an organization's files are too large; trying again does not help."""
    code = "storage_quota_exceeded"
    if request.url.path.startswith(_GOVERNED):
        code = code.upper()
    message = (
        f"You have exceeded your storage quota: {error}."
        " Delete files that you no longer need, or ask the operator of this server for a larger quota."
    )
    return ApiError(400, message, code=code, headers=NO_RETRY).response()


async def _tenant_closed(request: Request, error: Exception) -> JSONResponse:
    code = "TENANT_ERASED" if request.url.path.startswith(_GOVERNED) else "tenant_erased"
    message = f"Nothing was stored: {error}."
    return ApiError(403, message, code=code, type="permission_error", headers=NO_RETRY).response()


def _code(request: Request, usual: str) -> str:
    """Governed operations use one code for all invalid requests."""
    path = request.url.path
    if not path.startswith(_GOVERNED):
        return usual
    return "INVALID_REQUEST" if path.startswith(f"{_GOVERNED}admin/") else "INVALID_BATCH_REQUEST"


def unexpected() -> ApiError:
    message = "The server had an error while processing your request."
    return ApiError(500, message, code="server_error", type="server_error")


def safe_path(path: str) -> str:
    """A path that is safe to log: one line, without a key."""
    printable = "".join(character if character.isprintable() else "\ufffd" for character in _short(path))
    return _SECRET.sub(r"\1…", printable)


def _short(text: str, maximum: int = 200) -> str:
    return text if len(text) <= maximum else text[:maximum] + "…"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON from a client may contain and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
