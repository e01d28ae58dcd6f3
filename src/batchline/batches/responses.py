"""Background responses: each is a batch of one line. Creates them, and shows them as OpenAI does."""

import asyncio
from typing import Any

import msgspec

from batchline.batches.creation import window_seconds
from batchline.files import parsing
from batchline.files.parsing import LineRequest, ReadingRules
from batchline.model import Batch, RunSettings, ids
from batchline.model.ids import new_id
from batchline.store import creation as store_creation
from batchline.store import responses as store_responses
from batchline.store.batches import NewBatch
from batchline.store.idempotency import IdempotencyKey
from batchline.store.responses import StoredResponse
from batchline.store.session import Session

URL = "/v1/responses"
# A larger result is read and written in a thread.
_MAX_ON_LOOP = 64 * 1024

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# What a response repeats of its request, and what it says where the request says nothing.
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
    "metadata": {},
}


class ResponseRequest(msgspec.Struct, frozen=True):
    """A response that a client requests. `line` is what its upstream will be sent."""

    tenant: str
    line: LineRequest
    window: str
    input_expires_after: float | None
    output_expires_after: int | None
    # The models that can be run; None: any.
    served: frozenset[str] | None = None
    idempotency_key: IdempotencyKey | None = None


def line_of(body: bytes) -> LineRequest:
    """The line of a request body. `background` is for us, not for the upstream. Raises LineFault."""
    try:
        fields = {key: value for key, value in _decode_fields(body).items() if key != "background"}
        body = msgspec.json.encode(fields)
    except msgspec.DecodeError:
        # Not an object; the examination says so.
        pass
    line = b'{"custom_id":"response","method":"POST","url":"%b","body":%b}' % (URL.encode(), body)
    return parsing.examine(line, ReadingRules())


async def create(session: Session, requested: ResponseRequest) -> Batch:
    """Create the line and its batch. Raises IdempotencyConflict if the key was used before, and LineFault if
    no upstream serves the model."""
    new = NewBatch(
        id=new_id(),
        tenant=requested.tenant,
        file_id=new_id(),
        window=requested.window,
        window_seconds=window_seconds(requested.window),
        settings=RunSettings(),
        endpoint=URL,
        output_expires_after=requested.output_expires_after,
        planned_output_id=new_id(),
    )
    async with store_creation.creation(session, new) as creation:
        if requested.idempotency_key is not None:
            await creation.remember(requested.idempotency_key)
        line = requested.line
        name = ids.show(ids.RESPONSE, new.id)
        await creation.add_line(name, line.model, line.url, line.body, requested.input_expires_after)
        if await creation.unfit_lines(await creation.file(), requested.served, 1):
            raise parsing.model_not_found(line.model)
        return await creation.create()


async def show(session: Session, batch: Batch) -> bytes | None:
    """The response of a batch, as JSON; None if the batch is not a response, or its result was deleted."""
    stored = await store_responses.get(session, batch.id)
    if stored is None:
        return None
    if len(stored.output or b"") <= _MAX_ON_LOOP:
        return displayed(batch, stored)
    return await asyncio.to_thread(displayed, batch, stored)


def displayed(batch: Batch, stored: StoredResponse) -> bytes:
    request = msgspec.json.decode(stored.body)
    response: dict[str, Any] = {
        "id": ids.show(ids.RESPONSE, batch.id),
        "object": "response",
        "created_at": int(batch.created_at.timestamp()),
        "background": True,
        "model": request["model"],
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    # Not the value that the request gives as null.
    response |= {
        key: request[key] if request.get(key) is not None else usual for key, usual in _REPEATED.items()
    }
    return msgspec.json.encode(response | _state(batch, stored, response))


def _state(batch: Batch, stored: StoredResponse, response: dict[str, Any]) -> dict[str, Any]:
    if stored.output is not None:
        line = msgspec.json.decode(stored.output)
        if stored.outcome == "completed":
            return _answer(line["response"]["body"], response)
        return _failure(line)
    frozen = batch.finalizing_at is not None or batch.ended_at is not None
    if frozen and batch.cancelling_at is not None:
        return {"status": "cancelled"}
    if frozen:
        return _failed("batch_expired", "The response was not made within the completion window.")
    return {"status": "in_progress" if stored.running else "queued"}


def _answer(answer: Any, response: dict[str, Any]) -> dict[str, Any]:
    """The upstream's answer under this server's id."""
    if not isinstance(answer, dict):
        return _failed("invalid_response", "The upstream's answer is not a response.")
    kept = ("id", "object", "created_at", "background", "metadata")
    return {"status": "completed"} | answer | {key: response[key] for key in kept}


def _failure(line: dict[str, Any]) -> dict[str, Any]:
    error = line["error"]
    if error is None:
        answer = line["response"]["body"]
        error = answer.get("error") if isinstance(answer, dict) else None
        error = error if isinstance(error, dict) else {}
        status = line["response"]["status_code"]
        error = {"code": error.get("code") or f"http_{status}", "message": error.get("message")}
    message = error.get("message") or "The upstream refused the request."
    return _failed(str(error.get("code") or "server_error"), str(message))


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"status": "failed", "error": {"code": code, "message": message}}
