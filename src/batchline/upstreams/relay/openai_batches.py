"""OpenAI's Batch API, and those that are compatible with it: an uploaded file, a batch over it, and files of
outputs and errors.
"""

from collections.abc import AsyncIterator
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from batchline.upstreams.relay.batch_api import (
    ChunkOrder,
    LineProblem,
    OutputKind,
    OutputLine,
    ProviderBatch,
    UnreadableOutput,
)
from batchline.upstreams.relay.connection import NoAnswer, RelayConnection, RequestRefused

T = TypeVar("T")

# The key of the metadata by which a chunk is found again.
METADATA = "batchline_chunk"

_FILES, _BATCHES = "/v1/files", "/v1/batches"
_BOUNDARY = "batchline-9c1f5a7e2b"
_PIECE = 64 * 1024
_PAGE = 100
# The provider's clock may differ so much from the database's, in seconds.
_SKEW = 3600.0
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_KINDS = {"batch_expired": OutputKind.EXPIRED, "batch_cancelled": OutputKind.CANCELLED}


class _FileObject(msgspec.Struct):
    id: str


class _BatchError(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    line: int | None = None


class _BatchErrors(msgspec.Struct):
    data: list[_BatchError] | None = None


class _Counts(msgspec.Struct):
    completed: int = 0
    failed: int = 0


class _BatchObject(msgspec.Struct):
    id: str
    status: str = ""
    created_at: float = 0.0
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _BatchErrors | None = None
    metadata: dict[str, str] | None = None
    request_counts: _Counts | None = None


class _BatchList(msgspec.Struct):
    # Others may have made some of them: each is read by itself, and as far as it can be.
    data: list[Any]
    has_more: bool = False


class _LineAnswer(msgspec.Struct):
    status_code: int = 0
    request_id: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _OutputError(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _BatchOutput(msgspec.Struct):
    custom_id: str
    response: _LineAnswer | None = None
    error: _OutputError | None = None


_decode_output = msgspec.json.Decoder(_BatchOutput).decode


class OpenAIBatches:
    batches = _BATCHES
    max_lines = 50_000
    max_bytes = 200_000_000
    overhead = 160
    uploads = True
    searchable = True

    def runs(self, url: str) -> bool:
        return url.startswith("/v1/")

    def line(self, order: ChunkOrder, ordinal: int, body: bytes) -> bytes:
        head = b'{"custom_id":"%b","method":"POST","url":"%b","body":'
        # A line feed in JSON is whitespace between tokens.
        return (
            head % (order.line_key(ordinal).encode(), order.url.encode()) + body.replace(b"\n", b" ") + b"}\n"
        )

    async def upload(
        self, connection: RelayConnection, order: ChunkOrder, lines: AsyncIterator[bytes]
    ) -> str:
        content_type = f"multipart/form-data; boundary={_BOUNDARY}"
        answer = await connection.post_stream(_FILES, content_type, _form(order, lines))
        return decoded(answer, _FileObject).id

    async def create(
        self, connection: RelayConnection, order: ChunkOrder, lines: AsyncIterator[bytes]
    ) -> str:
        body = {
            "input_file_id": order.file_id,
            "endpoint": order.url,
            "completion_window": "24h",
            "metadata": {METADATA: order.key},
        }
        answer = await connection.ask(
            "POST", _BATCHES, body=msgspec.json.encode(body), key=order.creation_key
        )
        return decoded(answer, _BatchObject).id

    async def find(self, connection: RelayConnection, order: ChunkOrder) -> str | None:
        after, seen = "", set[str]()
        while True:
            query = f"limit={_PAGE}" + (f"&after={quote(after)}" if after else "")
            page = decoded(await connection.ask("GET", _BATCHES, query=query), _BatchList)
            listed = [
                each for each in page.data if isinstance(each, dict) and isinstance(each.get("id"), str)
            ]
            for each in listed:
                if _is_of(order, each):
                    return str(each["id"])
            if not page.has_more or _all_older(listed, order.created_at - _SKEW):
                return None
            if seen.issuperset(each["id"] for each in listed):
                raise NoAnswer("the provider's list of batches does not go on: it repeats itself")
            seen.update(each["id"] for each in listed)
            after = listed[-1]["id"]

    async def state(self, connection: RelayConnection, batch: str) -> ProviderBatch:
        found = decoded(await connection.ask("GET", f"{_BATCHES}/{batch}"), _BatchObject)
        counts = found.request_counts or _Counts()
        finished = counts.completed + counts.failed
        if found.status not in _ENDED:
            return ProviderBatch(None, finished=finished)
        files = (found.output_file_id, found.error_file_id)
        outputs = tuple(f"{_FILES}/{each}/content" for each in files if each)
        problems = found.errors.data or () if found.errors is not None and found.status == "failed" else ()
        return ProviderBatch(
            found.status,
            outputs,
            tuple(
                LineProblem(each.line, each.code or "batch_failed", each.message or "") for each in problems
            ),
            finished,
        )

    async def cancel(self, connection: RelayConnection, batch: str) -> None:
        await connection.ask("POST", f"{_BATCHES}/{batch}/cancel")

    async def delete(self, connection: RelayConnection, batch: str | None, file_id: str | None) -> None:
        files = [file_id]
        if batch is not None:
            found = decoded(await connection.ask("GET", f"{_BATCHES}/{batch}"), _BatchObject)
            files += [found.output_file_id, found.error_file_id]
        for each in files:
            if each:
                try:
                    await connection.ask("DELETE", f"{_FILES}/{each}")
                except RequestRefused as refused:
                    if refused.status != 404:
                        raise

    def read(self, line: bytes) -> OutputLine:
        try:
            found = _decode_output(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableOutput(str(error)) from None
        problem, response = found.error, found.response
        # Batchline's own server keeps an answer that does not count next to the error.
        if response is not None and response.status_code and (problem is None or problem.code is None):
            request_id, body = response.request_id, bytes(response.body)
            return OutputLine(found.custom_id, OutputKind.ANSWERED, response.status_code, request_id, body)
        code = problem.code if problem is not None and problem.code else "no_response"
        message = problem.message if problem is not None else None
        message = message or "The provider gave no response."
        return OutputLine(found.custom_id, _KINDS.get(code, OutputKind.FAILED), code=code, message=message)


def _is_of(order: ChunkOrder, listed: dict[str, Any]) -> bool:
    """Whether a batch is over this chunk, and not known to be refused."""
    if listed["id"] in order.refused:
        return False
    metadata = listed.get("metadata")
    by_file = order.file_id is not None and listed.get("input_file_id") == order.file_id
    return by_file or (isinstance(metadata, dict) and metadata.get(METADATA) == order.key)


def _all_older(listed: list[dict[str, Any]], than: float) -> bool:
    """Whether this page and all that follow it are older: if the newest come first, and the last is older."""
    dates = [each.get("created_at") for each in listed]
    numbers = [date for date in dates if isinstance(date, int | float) and date > 0]
    if len(numbers) < max(len(dates), 2) or numbers != sorted(numbers, reverse=True):
        return False
    return numbers[0] > numbers[-1] and numbers[-1] < than


async def _form(order: ChunkOrder, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A form with a file, in pieces of some size."""
    piece = bytearray(
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f"--{_BOUNDARY}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="batchline-{order.key}.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n".encode()
    )
    async for line in lines:
        piece += line
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + f"\r\n--{_BOUNDARY}--\r\n".encode()


def decoded(answer: bytes, of: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=of)
    except msgspec.DecodeError as error:
        raise NoAnswer(f"the provider's answer cannot be read: {error}") from None
