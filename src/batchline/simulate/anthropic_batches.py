"""A simulated Anthropic Message Batches API, with batches that survive the process and a ledger.

A batch is accepted whether or not the caller still waits, and takes its time; then each of its requests has
a result. A text in a request decides about that one: `<<errored>>`, `<<overloaded>>`, `<<expired>>`. With a
file, batches survive the process: each is appended before its creation is answered.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from batchline.simulate.http import Connection, ReceivedRequest
from batchline.simulate.refusals import Refusal

PATH = b"/v1/messages/batches"
MAX_REQUESTS = 100_000
_MARKS = {"<<errored>>": "invalid_request_error", "<<overloaded>>": "overloaded_error"}
_EXPIRED = "<<expired>>"


class BatchedRequest(msgspec.Struct):
    custom_id: str
    params: dict[str, Any]


class SimulatedMessageBatch(msgspec.Struct):
    """A line of the file."""

    id: str
    created_at: float
    requests: list[BatchedRequest]
    cancelled_at: float | None = None
    deleted: bool = False


class _Creation(msgspec.Struct):
    requests: list[BatchedRequest]


class SimulatedMessageBatches:
    """`seconds`: how long a batch takes."""

    def __init__(self, seconds: float, file: Path | None) -> None:
        self._seconds = seconds
        self._file = file
        self._batches: dict[str, SimulatedMessageBatch] = {}
        if file is not None and file.exists():
            for line in file.read_bytes().splitlines():
                found = msgspec.json.decode(line, type=SimulatedMessageBatch)
                self._batches[found.id] = found

    @staticmethod
    def serves(path: bytes) -> bool:
        return path == PATH or path.startswith(PATH + b"/")

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        try:
            self._handle(connection, request)
        except Refusal as refusal:
            connection.answer(refusal.status, refusal.body, refusal.headers)

    def report(self) -> dict[str, Any]:
        """What was accepted: the keys of all requests, one entry for each time."""
        keys = [each.custom_id for batch in self._batches.values() for each in batch.requests]
        return {
            "batches": len(self._batches),
            "requests": len(keys),
            "requests_twice": len(keys) - len(set(keys)),
        }

    def _handle(self, connection: Connection, request: ReceivedRequest) -> None:
        if not request.api_key:
            raise Refusal(401, "x-api-key header is required", type="authentication_error")
        below = request.path[len(PATH) :].decode("latin-1").strip("/")
        name, _, act = below.partition("/")
        match request.method, name, act:
            case b"POST", "", "":
                connection.answer(200, self._create(request.body))
            case b"GET", "", "":
                connection.answer(200, self._list())
            case b"GET", _, "":
                connection.answer(200, self._displayed(self._found(name)))
            case b"GET", _, "results":
                connection.stream(b"application/x-jsonl", self._results(self._found(name)))
            case b"POST", _, "cancel":
                connection.answer(200, self._cancel(self._found(name)))
            case b"DELETE", _, "":
                self._keep(msgspec.structs.replace(self._found(name), deleted=True))
                connection.answer(200, msgspec.json.encode({"id": name, "type": "message_batch_deleted"}))
            case _:
                raise Refusal(404, "Not found", type="not_found_error")

    def _create(self, body: bytes) -> bytes:
        try:
            requests = msgspec.json.decode(body, type=_Creation).requests
        except msgspec.DecodeError as error:
            raise Refusal(400, f"requests: {error}") from None
        if not 0 < len(requests) <= MAX_REQUESTS:
            raise Refusal(400, f"requests: between 1 and {MAX_REQUESTS} are allowed")
        if len({each.custom_id for each in requests}) < len(requests):
            raise Refusal(400, "requests: custom_id values must be unique")
        made = SimulatedMessageBatch(f"msgbatch_{uuid4().hex}", time.time(), requests)
        self._keep(made)
        return self._displayed(made)

    def _list(self) -> bytes:
        newest = sorted(self._batches.values(), key=lambda each: -each.created_at)
        return msgspec.json.encode({"data": [self._object(each) for each in newest[:100]], "has_more": False})

    def _cancel(self, batch: SimulatedMessageBatch) -> bytes:
        if not self._ended(batch) and batch.cancelled_at is None:
            batch = msgspec.structs.replace(batch, cancelled_at=time.time())
            self._keep(batch)
        return self._displayed(batch)

    def _found(self, name: str) -> SimulatedMessageBatch:
        found = self._batches.get(name)
        if found is None or found.deleted:
            raise Refusal(404, f"{name} was not found", type="not_found_error")
        return found

    def _keep(self, batch: SimulatedMessageBatch) -> None:
        self._batches[batch.id] = batch
        if self._file is not None:
            with self._file.open("ab") as stream:
                stream.write(msgspec.json.encode(batch) + b"\n")

    def _ended(self, batch: SimulatedMessageBatch) -> bool:
        return batch.cancelled_at is not None or time.time() >= batch.created_at + self._seconds

    def _displayed(self, batch: SimulatedMessageBatch) -> bytes:
        return msgspec.json.encode(self._object(batch))

    def _object(self, batch: SimulatedMessageBatch) -> dict[str, Any]:
        ended = self._ended(batch)
        types = [result["type"] for _, result in self._outcomes(batch)] if ended else []
        counts = {kind: types.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")}
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": {"processing": 0 if ended else len(batch.requests), **counts},
            "results_url": f"https://api.invalid{PATH.decode()}/{batch.id}/results" if ended else None,
        }

    def _results(self, batch: SimulatedMessageBatch) -> Iterator[bytes]:
        if not self._ended(batch):
            raise Refusal(404, "The batch has no results yet", type="not_found_error")
        # In another order than the requests, as the real API may have it.
        for custom_id, result in reversed(list(self._outcomes(batch))):
            yield msgspec.json.encode({"custom_id": custom_id, "result": result}) + b"\n"

    def _outcomes(self, batch: SimulatedMessageBatch) -> Iterator[tuple[str, dict[str, Any]]]:
        """A cancelled batch has run the share of its requests that its time allowed."""
        done = len(batch.requests)
        if batch.cancelled_at is not None and self._seconds > 0:
            done = int(done * (batch.cancelled_at - batch.created_at) / self._seconds)
        for nth, each in enumerate(batch.requests):
            yield each.custom_id, _outcome(each) if nth < done else {"type": "canceled"}


def _outcome(request: BatchedRequest) -> dict[str, Any]:
    text = str(request.params.get("messages"))
    if _EXPIRED in text:
        return {"type": "expired"}
    for mark, kind in _MARKS.items():
        if mark in text:
            error = {"type": "error", "error": {"type": kind, "message": f"The request asked for {kind}."}}
            return {"type": "errored", "error": error}
    message = {
        "id": f"msg_{uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": request.params.get("model"),
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }
    return {"type": "succeeded", "message": message}
