"""Anthropic's Message Batches: lines for /v1/messages, which are part of the creation of a batch.

A batch carries no metadata, so one that was created without an answer cannot be found. Bodies are sent as
they are.
"""

from collections.abc import AsyncIterator

import msgspec

from batchline.upstreams.relay.batch_api import (
    ChunkOrder,
    OutputKind,
    OutputLine,
    ProviderBatch,
    UnreadableOutput,
)
from batchline.upstreams.relay.connection import RelayConnection, RequestRefused
from batchline.upstreams.relay.openai_batches import decoded

MESSAGES = "/v1/messages"

_BATCHES = "/v1/messages/batches"
_PIECE = 64 * 1024
# What the Messages API answers for each type of error.
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_PASSING = frozenset({"rate_limit_error", "api_error", "timeout_error", "overloaded_error"})


class _RequestCounts(msgspec.Struct):
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class _MessageBatch(msgspec.Struct):
    id: str
    processing_status: str = ""
    request_counts: _RequestCounts | None = None
    results_url: str | None = None
    cancel_initiated_at: str | None = None


class _ErrorDetail(msgspec.Struct):
    type: str = "api_error"
    message: str = ""


class _ErrorObject(msgspec.Struct):
    error: _ErrorDetail | None = None


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"{}")


class _ResultLine(msgspec.Struct):
    custom_id: str
    result: _Result


class _MessageId(msgspec.Struct):
    id: str | None = None


_decode_result = msgspec.json.Decoder(_ResultLine).decode


class AnthropicBatches:
    batches = _BATCHES
    max_lines = 100_000
    max_bytes = 256_000_000
    overhead = 100
    uploads = False
    searchable = False

    def runs(self, url: str) -> bool:
        return url == MESSAGES

    def line(self, order: ChunkOrder, ordinal: int, body: bytes) -> bytes:
        return b'{"custom_id":"%b","params":%b}' % (order.line_key(ordinal).encode(), body)

    async def upload(
        self, connection: RelayConnection, order: ChunkOrder, lines: AsyncIterator[bytes]
    ) -> str:
        raise NotImplementedError("lines are sent with the creation of the batch")

    async def create(
        self, connection: RelayConnection, order: ChunkOrder, lines: AsyncIterator[bytes]
    ) -> str:
        answer = await connection.post_stream(_BATCHES, "application/json", _requests(lines))
        return decoded(answer, _MessageBatch).id

    async def find(self, connection: RelayConnection, order: ChunkOrder) -> str | None:
        raise NotImplementedError("batches carry no metadata")

    async def state(self, connection: RelayConnection, batch: str) -> ProviderBatch:
        found = decoded(await connection.ask("GET", f"{_BATCHES}/{batch}"), _MessageBatch)
        counts = found.request_counts or _RequestCounts()
        finished = counts.succeeded + counts.errored
        if found.processing_status != "ended":
            return ProviderBatch(None, finished=finished)
        outcome = "cancelled" if counts.canceled else "expired" if counts.expired else "completed"
        # The address is below the upstream in any case: the key goes nowhere else.
        return ProviderBatch(outcome, (f"{_BATCHES}/{batch}/results",), finished=finished)

    async def cancel(self, connection: RelayConnection, batch: str) -> None:
        await connection.ask("POST", f"{_BATCHES}/{batch}/cancel")

    async def delete(self, connection: RelayConnection, batch: str | None, file_id: str | None) -> None:
        if batch is None:
            return
        try:
            await connection.ask("DELETE", f"{_BATCHES}/{batch}")
        except RequestRefused as refused:
            if refused.status != 404:
                raise

    def read(self, line: bytes) -> OutputLine:
        try:
            found = _decode_result(line)
            return self._output(found.custom_id, found.result)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableOutput(str(error)) from None

    def _output(self, key: str, result: _Result) -> OutputLine:
        match result.type:
            case "succeeded":
                body = bytes(result.message)
                message_id = msgspec.json.decode(body, type=_MessageId).id
                return OutputLine(key, OutputKind.ANSWERED, 200, message_id, body)
            case "errored":
                return _errored(key, bytes(result.error))
            case "canceled":
                message = "The batch was cancelled before this line ran."
                return OutputLine(key, OutputKind.CANCELLED, code="batch_cancelled", message=message)
            case "expired":
                message = "The provider did not run this line in time."
                return OutputLine(key, OutputKind.EXPIRED, code="batch_expired", message=message)
            case _:
                raise UnreadableOutput(f"unknown result type {result.type!r}")


def _errored(key: str, error: bytes) -> OutputLine:
    detail = msgspec.json.decode(error, type=_ErrorObject).error
    if detail is None:
        detail = msgspec.json.decode(error, type=_ErrorDetail)
    if detail.type in _PASSING:
        return OutputLine(key, OutputKind.FAILED, code=detail.type, message=detail.message)
    return OutputLine(key, OutputKind.ANSWERED, _STATUSES.get(detail.type, 400), None, error)


async def _requests(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body of a creation, in pieces of some size."""
    piece, first = bytearray(b'{"requests":['), True
    async for line in lines:
        piece += line if first else b"," + line
        first = False
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + b"]}"
