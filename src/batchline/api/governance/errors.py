"""Turns errors of governed operations into responses: a status per kind, a code per case."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from batchline.api.errors import NO_RETRY, ApiError, ErrorBody, documented
from batchline.governance.errors import Conflict, LimitReached, NotAllowed, NotFound, Refused, RequestIdReused


class RateLimitBody(ErrorBody):
    limit_type: str
    current_value: int
    max_value: int
    retry_after: int
    contact_admin: str


class RateLimitEnvelope(BaseModel):
    error: RateLimitBody


def governed_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: these statuses, and those that any governed route may return."""
    limited: dict[int | str, dict[str, Any]] = {429: {"model": RateLimitEnvelope}}
    return documented(403, 413, *statuses) | limited


def reported(refused: Refused, contact_admin: str) -> ApiError:
    """The response for an error."""
    match refused:
        case LimitReached():
            return ApiError(
                429,
                refused.message,
                code=refused.code,
                type="rate_limit_error",
                headers={"retry-after": str(refused.retry_after)},
                more={
                    "limit_type": refused.limit_type,
                    "current_value": refused.current_value,
                    "max_value": refused.max_value,
                    "retry_after": refused.retry_after,
                    "contact_admin": contact_admin,
                },
            )
        case NotFound():
            status = 404
        case NotAllowed():
            status = 403
        case RequestIdReused():
            status = 422
        case Conflict():
            status = 409
        case _:
            status = 400
    headers = {"retry-after": "1"} if refused.code == "BATCH_FINALIZING" else NO_RETRY
    return ApiError(status, refused.message, code=refused.code, param=refused.param, headers=headers)


def handle_refusals(app: FastAPI, contact_admin: str) -> None:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Refused)
        return reported(error, contact_admin).response()

    app.add_exception_handler(Refused, answer)
