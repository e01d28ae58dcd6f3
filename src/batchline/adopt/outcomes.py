"""Translates the end of an old request into a result with its output line, and back.

The line is composed by the functions that workers use, so an adopted result looks like any other.
"""

from typing import Any

import msgspec

from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer
from batchline.model import NO_USAGE, Claim, Item, RunSettings
from batchline.store.adoption.records import AdoptedResult, FinishedRequest, StoredResult, WrittenBack

_CANCELED = ("canceled", "This request was canceled before the database was adopted.")
# The error of a request that has none, and of one whose error is only text.
_UNKNOWN = "unknown_error"


class _Failure(msgspec.Struct):
    """How fusillade stores an error: its kind, and details that depend on it."""

    type: str
    details: Any = None


class _OldResponse(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _OldError(msgspec.Struct):
    code: str
    message: str


class _OutputLine(msgspec.Struct):
    custom_id: str
    response: _OldResponse | None = None
    error: _OldError | None = None


def adopted_result(request: FinishedRequest) -> AdoptedResult:
    """The result of an old request that has ended."""
    item = _item(request)
    if request.state == "canceled":
        return AdoptedResult(request, "failed", None, failed_line(item, *_CANCELED))
    if request.state == "completed":
        return _completed(request, item)
    return _failed(request, item)


def written_back(result: StoredResult) -> WrittenBack:
    """What the old request of a result becomes."""
    line = msgspec.json.decode(result.output, type=_OutputLine)
    completed = result.outcome == "completed"
    response = line.response
    body = bytes(response.body) if response is not None else None
    return WrittenBack(
        request_id=result.request_id,
        state=result.outcome,
        retry_attempt=result.attempt - 1,
        response_status=(response.status_code if response else 200) if completed else None,
        response_body=(body or b"null") if completed else None,
        error=None if completed else _failure(line),
        finished_at=result.finished_at,
    )


def same(outcome: str, stored: str, composed: AdoptedResult) -> bool:
    """Whether a stored output line says the same as the old request.

    The line of an item that ran here has the upstream's request id, which the old tables do not keep.
    """
    found = msgspec.json.decode(stored, type=_OutputLine)
    expected = msgspec.json.decode(composed.output, type=_OutputLine)
    return outcome == composed.outcome and _content(found) == _content(expected)


def _content(line: _OutputLine) -> tuple[Any, ...]:
    response = line.response
    if response is None:
        return (line.custom_id, None)
    return (line.custom_id, response.status_code, msgspec.json.decode(response.body))


def _completed(request: FinishedRequest, item: Item) -> AdoptedResult:
    answer = (request.response_body or "null").encode()
    try:
        body, usage = read_answer(answer)
    except NotJson:
        body, usage = as_json(answer), NO_USAGE
    status = request.response_status or 200
    return AdoptedResult(
        request,
        "completed",
        status,
        answered_line(item, status, request.request_id, body),
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )


def _failed(request: FinishedRequest, item: Item) -> AdoptedResult:
    failure = _read_failure(request.error)
    details = failure.details if isinstance(failure.details, dict) else {}
    status, body = details.get("status", request.response_status), details.get("body", request.response_body)
    if isinstance(status, int):
        text = body if isinstance(body, str) else ""
        line = answered_line(item, status, request.request_id, as_json(text.encode()))
        return AdoptedResult(request, "failed", status, line)
    message = details.get("message") or details.get("error") or request.error or "no error was recorded"
    code = details.get("code") or failure.type
    return AdoptedResult(request, "failed", None, failed_line(item, str(code), str(message)))


def _read_failure(error: str | None) -> _Failure:
    try:
        return msgspec.json.decode(error or "", type=_Failure)
    except msgspec.DecodeError:
        return _Failure(_UNKNOWN)


def _failure(line: _OutputLine) -> bytes:
    """An error in the form that fusillade reads. Unknown keys in it are ignored there, and read back here."""
    if line.response is not None:
        details: dict[str, Any] = {
            "status": line.response.status_code,
            "body": bytes(line.response.body).decode(),
        }
        return msgspec.json.encode(_Failure("NonRetriableHttpStatus", details))
    error = line.error or _OldError(_UNKNOWN, "no error was recorded")
    details = {"error": f"{error.code}: {error.message}", "code": error.code, "message": error.message}
    return msgspec.json.encode(_Failure("NetworkError", details))


def _item(request: FinishedRequest) -> Item:
    """The item that the output line is about. Only its ids are used."""
    claim = Claim(
        span_id=0,
        lane_id=request.lane_id,
        batch_id=request.batch_id,
        attempt=request.retry_attempt + 1,
        task_id=None,
        size=1,
        url="",
        model="",
        key="",
        seconds_left=0.0,
        settings=RunSettings(),
    )
    return Item(claim, request.ordinal, request.line_no, request.custom_id.encode(), b"")
