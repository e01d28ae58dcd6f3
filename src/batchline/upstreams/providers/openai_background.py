"""OpenAI's background responses: POST /v1/responses with `background: true`, then GET /v1/responses/{id}.

OpenAI documents neither an idempotency key nor a search for responses. Servers that offer one of them are
found by the key, which is sent as `Idempotency-Key` and as `batchline_key` in the metadata.
"""

import re
from typing import Any
from urllib.parse import urlencode

import msgspec

from batchline.upstreams.providers.provider import Progress, TaskState, UnsubmittableItem

KEY = "batchline_key"
# OpenAI's limit of metadata.
_MAX_PAIRS = 16
# What a path and a column can hold. OpenAI's ids are `resp_` and hexadecimal digits.
_TASK_ID = re.compile(r"[A-Za-z0-9_.:=~-]{1,500}")
_RUNNING = frozenset({"queued", "in_progress"})
_SUCCEEDED = frozenset({"completed", "incomplete"})
# Codes of failures that say nothing about the item.
_PASSING = frozenset({"server_error", "rate_limit_exceeded"})


class _Error(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Response(msgspec.Struct):
    id: str
    status: str | None = None
    created_at: float | None = None
    error: _Error | None = None
    metadata: dict[str, Any] | None = None


class _ListedResponses(msgspec.Struct):
    data: list[_Response]


_decode = msgspec.json.Decoder(_Response).decode
_decode_page = msgspec.json.Decoder(_ListedResponses).decode
_decode_body = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_metadata = msgspec.json.Decoder(dict[str, Any] | None).decode
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class OpenAIBackground:
    path = "/v1/responses"

    def submission(self, key: str, body: bytes) -> bytes:
        fields, metadata = _read(body)
        if len(metadata) < _MAX_PAIRS:
            metadata[KEY] = key
            fields["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
        fields["background"] = msgspec.Raw(b"true")
        # Nobody would read the stream: the answer to a submission is the task.
        fields.pop("stream", None)
        return msgspec.json.encode(fields)

    def carries_key(self, body: bytes) -> bool:
        return len(_read(body)[1]) < _MAX_PAIRS

    def accepted(self, answer: bytes) -> str | None:
        try:
            response = _decode(answer)
        except _DECODE_ERRORS:
            return None
        return _task_id(response.id)

    def search(self, key: str) -> str:
        return urlencode({f"metadata[{KEY}]": key})

    def found(self, key: str, answer: bytes) -> str | None:
        try:
            page = _decode_page(answer)
        except _DECODE_ERRORS as error:
            raise ValueError(f"the answer is no list of responses: {error}") from None
        for each in page.data:
            if (each.metadata or {}).get(KEY) == key:
                return _task_id(each.id)
        if page.data:
            # So a task that is not listed may exist.
            raise ValueError("the server ignores the search: it lists responses with other keys")
        return None

    def state(self, answer: bytes) -> TaskState | None:
        try:
            response = _decode(answer)
        except _DECODE_ERRORS:
            return None
        status = response.status or ""
        if status in _RUNNING:
            return TaskState(Progress.RUNNING, response.created_at)
        if status in _SUCCEEDED:
            return TaskState(Progress.SUCCEEDED, response.created_at)
        if status == "cancelled":
            return TaskState(
                Progress.FAILED, code="task_cancelled", message="The provider's task was cancelled."
            )
        if status != "failed":
            return None
        error = response.error or _Error()
        code = error.code or "task_failed"
        message = error.message or "The provider's task failed."
        return TaskState(Progress.FAILED, code=code, message=message, passing=code in _PASSING)


def _read(body: bytes) -> tuple[dict[str, msgspec.Raw], dict[str, Any]]:
    """The fields of a request, and its metadata. Raises UnsubmittableItem."""
    try:
        fields = _decode_body(body)
        return fields, _decode_metadata(fields.get("metadata", b"null")) or {}
    except _DECODE_ERRORS as error:
        raise UnsubmittableItem(f"the body is no request for a response: {error}") from None


def _task_id(text: str) -> str:
    if not _TASK_ID.fullmatch(text):
        raise ValueError(f"the id of the provider's task cannot be stored: {text[:100]!r}")
    return text
