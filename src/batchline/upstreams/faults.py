"""Codes and messages for failed requests: from the client's errors and from error answers."""

import re
from http.client import responses as phrases

from pyreqwest.exceptions import (
    BodyDecodeError,
    DetailedPyreqwestError,
    NetworkError,
    RequestTimeoutError,
)

from batchline.model.failure import MAX_MESSAGE, said_by

__all__ = ["MAX_MESSAGE", "code_of", "is_lost", "message_of", "never_left", "reason_of"]

# What rustls says of an answer in plain HTTP.
_NO_TLS = "InvalidContentType"


def never_left(error: DetailedPyreqwestError) -> bool:
    """Whether no connection came about, so that not a byte of the request was sent.

    pyreqwest's ConnectError and ConnectTimeoutError do not say that: it also raises them when the upstream
    took the request and then hung, or hung up. The step at which hyper failed does.
    """
    return "client error (Connect)" in _causes(error)


def is_lost(error: DetailedPyreqwestError) -> bool:
    """Whether a connection was made, and then lost before the answer was complete."""
    return not never_left(error) and code_of(error) == "connection_lost"


def code_of(error: DetailedPyreqwestError) -> str:
    match error:
        case RequestTimeoutError():
            return "timeout"
        case NetworkError():
            return "connection_lost"
        case BodyDecodeError() if "error reading a body from connection" in _causes(error):
            return "connection_lost"
        case _:
            return "invalid_response"


def reason_of(error: DetailedPyreqwestError) -> str:
    """The innermost cause. The outermost names the URL, which may hold a password."""
    if isinstance(error, RequestTimeoutError):
        return "the connection timed out" if never_left(error) else "no complete answer in time"
    causes = _causes(error)
    if causes and _NO_TLS in causes[-1]:
        return "the server does not speak TLS; try http:// instead of https://"
    return re.sub(r" \(os error \d+\)$", "", causes[-1]) if causes else error.message


def message_of(status: int, body: bytes) -> str:
    """What an error answer says."""
    said = said_by(body) or f"The upstream answered {status} {phrases.get(status, '')}".rstrip()
    return said[:MAX_MESSAGE]


def _causes(error: DetailedPyreqwestError) -> list[str]:
    return [cause["message"] for cause in error.details["causes"] or ()]
