"""A provider with OpenAI's Batch API in the test's event loop, whose outputs a test decides."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from batchline.simulate.http import Connection, ReceivedRequest
from batchline.simulate.server import Simulator
from batchline.simulate.settings import SimulateSettings


def answered(key: str, status: int = 200) -> str:
    usage, error = {"prompt_tokens": 4, "completion_tokens": 2}, {"message": "no"}
    body = {"usage": usage} if status == 200 else {"error": error}
    response = {"status_code": status, "request_id": "r", "body": body}
    return json.dumps({"id": "x", "custom_id": key, "response": response, "error": None})


def without_answer(key: str, code: str) -> str:
    error = {"code": code, "message": code}
    return json.dumps({"id": "x", "custom_id": key, "response": None, "error": error})


class ScriptedBatches:
    """`outputs` makes the output of a batch from the keys that were sent. `status` is that of batches."""

    def __init__(self, outputs: Callable[[Sequence[str]], str]) -> None:
        self.outputs = outputs
        self.status = "completed"
        self.errors: list[dict[str, Any]] = []
        self.files: dict[str, list[str]] = {}
        self.batches: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.cancelled: list[str] = []
        # What else to answer to a request such as `POST /v1/batches`.
        self.refusals: dict[str, tuple[int, bytes]] = {}
        # What to answer instead, by the line of a request without its query; None: as always.
        self.script: Callable[[str, ReceivedRequest], tuple[int, bytes] | None] = lambda line, request: None
        # Requests that wait for an event before they are looked at, and those that have arrived.
        self.waits: dict[str, asyncio.Event] = {}
        self.arrived: list[str] = []
        # Lines that came one by one.
        self.direct_requests = 0
        self.url = ""

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        line = f"{request.method.decode()} {request.path.decode()}"
        self.arrived.append(line)
        if (event := self.waits.pop(line, None)) is not None:
            waiting = asyncio.ensure_future(event.wait())
            waiting.add_done_callback(lambda _: self.handle(connection, request))
            return
        refusal = self.refusals.pop(line, None)
        if refusal is None:
            refusal = self.script(line.partition("?")[0], request)
        connection.answer(*(refusal or self.accept(request)))

    def accept(self, request: ReceivedRequest) -> tuple[int, bytes]:
        """What a provider that works does."""
        path = request.path.decode().partition("?")[0]
        status, body = self._answer(request.method.decode(), path.split("/")[2:], request.body)
        return status, body if isinstance(body, bytes) else json.dumps(body).encode()

    def _answer(self, method: str, path: list[str], body: bytes) -> tuple[int, Any]:
        match method, path:
            case "POST", ["files"]:
                lines = [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]
                self.files[f"file-{len(self.files)}"] = [line["custom_id"] for line in lines]
                return 200, {"id": f"file-{len(self.files) - 1}"}
            case "POST", ["chat", "completions"]:
                self.direct_requests += 1
                return 200, {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
            case "POST", ["batches"]:
                self.batches.append(
                    {"id": f"batch-{len(self.batches)}", "created_at": 2e9, **json.loads(body)}
                )
                return 200, self.batches[-1]
            case "GET", ["batches"]:
                return 200, {"data": self.batches[::-1], "has_more": False}
            case "POST", ["batches", batch, "cancel"]:
                self.cancelled.append(batch)
                return 200, {"id": batch}
            case "GET", ["batches", batch]:
                return 200, self._state(batch)
            case "GET", ["files", file, "content"]:
                return 200, self.outputs(self.files[file.removeprefix("output-")]).encode()
            case "DELETE", ["files", file]:
                self.deleted.append(file)
                return 200, {"id": file}
            case _:
                return 404, {"error": {"message": "not found"}}

    def _state(self, batch: str) -> dict[str, Any]:
        found = self.batches[int(batch.removeprefix("batch-"))]
        status = "cancelled" if batch in self.cancelled else self.status
        ended = status in ("completed", "expired", "cancelled")
        return {
            **found,
            "status": status,
            "output_file_id": f"output-{found['input_file_id']}" if ended else None,
            "errors": {"data": self.errors},
        }


@asynccontextmanager
async def scripted_batches(outputs: Callable[[Sequence[str]], str]) -> AsyncIterator[ScriptedBatches]:
    provider = ScriptedBatches(outputs)

    def handler(_: asyncio.AbstractEventLoop) -> Callable[[Connection, ReceivedRequest], None]:
        return provider.handle

    simulator = Simulator(SimulateSettings(port=0), handler)
    host, port = await simulator.start()
    provider.url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        await simulator.stop(grace_s=0.1)
