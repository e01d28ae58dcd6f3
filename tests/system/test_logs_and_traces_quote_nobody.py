"""Logs and traces name lines and what went wrong, and quote neither prompts, answers nor secrets.

The upstream writes the prompt and the API key wherever it can: into messages, codes, ids, names of models,
headers, and bodies that are not JSON.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.otlp_collector import Collector, collecting
from tests.support.processes import batchline
from tests.support.server_process import Served, served
from tests.support.waiting import wait_for

PROMPT = "Zanzibar marmalade"
CUSTOM_ID = "patient-Quixote-1956"
KEY = "upstream-key-0123456789abcdef"
COLLECTOR_KEY = "collector-key-0123456789abcdef"
WAYS = ("well", "400", "500", "429", "not json", "drop")
PLANTED = ("Zanzibar", "marmalade", "Quixote", KEY, COLLECTOR_KEY)


class _Quoting(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt, key = body["messages"][0]["content"], self.headers["authorization"]
        quoted = f"You said {prompt} with {key}"
        match body["way"]:
            case "well":
                choice = {"message": {"content": quoted}, "finish_reason": quoted}
                self._answer(200, {"id": quoted, "model": quoted, "choices": [choice]}, quoted)
            case "not json":
                self._answer(200, None, quoted)
            case "drop":
                self.close_connection = True
            case status:
                error = {"message": quoted, "code": quoted, "type": quoted, "param": quoted}
                self._answer(int(status), {"error": error}, quoted)

    def do_GET(self) -> None:
        self._answer(404, {}, "")

    def _answer(self, status: int, document: Any, quoted: str) -> None:
        body = quoted.encode() if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-request-id", quoted)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def a_quoting_upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Quoting)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="quoting upstream")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def a_line(number: int, way: str) -> bytes:
    body = {"model": "m", "way": way, "messages": [{"role": "user", "content": f"{PROMPT} {number}"}]}
    line = {
        "custom_id": f"{CUSTOM_ID}-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return json.dumps(line).encode() + b"\n"


def planted_in(text: str) -> list[str]:
    return [each for each in PLANTED if each in text]


def refuse(server: Served) -> None:
    """Make the server refuse a request because of what is in it."""
    with server.client() as client, pytest.raises(openai.BadRequestError):
        client.post("/batches", body={"completion_window": PROMPT, PROMPT: PROMPT}, cast_to=object)


def ran(server: Served) -> str:
    """The id of a batch with each way to fail, once it has ended."""
    with server.client() as client:
        lines = b"".join(a_line(number, way) for number, way in enumerate(WAYS))
        file = client.files.create(file=("lines.jsonl", lines), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        wait_for("the batch", lambda: client.batches.retrieve(batch.id).status == "completed")
        return batch.id


def test_server_and_worker_name_lines_and_quote_nobody(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    with a_quoting_upstream() as upstream:
        settings = tmp_path / "batchline.toml"
        settings.write_text(
            f'[[upstreams]]\nname = "u"\nbase_url = "{upstream}"\napi_key_env = "THE_KEY"\nmax_attempts = 2\n'
            f'[traces]\nendpoint = "{collector.url}"\nheaders_to = ["{upstream}"]\n'
        )
        with served(
            database_url,
            tmp_path,
            *("--log-json", "--config", str(settings)),
            THE_KEY=KEY,
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization={COLLECTOR_KEY}",
            OTEL_BSP_SCHEDULE_DELAY="50",
            NO_PROXY="127.0.0.1",
            # FastAPI's own traces and logs would have the input of a refused request.
            FASTAPI_OTEL_AUTO_CONFIGURE="true",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        ) as server:
            refuse(server)
            batch_id = ran(server)
            lines = {
                each.attributes["batchline.line"]: each for each in collector.wait_for("line", len(WAYS))
            }
    log = "".join(server.complained)
    assert planted_in(log) == []
    assert [found for body in collector.bodies if (found := planted_in(body.decode("latin-1")))] == []
    assert {each["authorization"] for each in collector.headers} == {COLLECTOR_KEY}
    assert set(collector.paths) == {"/v1/traces"}
    known = ("line", "claim", "chat", "settle", "finalize", "POST /v1/batches")
    assert [each.name for each in collector.spans if not each.name.startswith(known)] == []

    events = [json.loads(line) for line in log.splitlines()]
    failed = {each["ordinal"]: each for each in events if each["event"] == "line failed"}
    assert {ordinal: each["code"] for ordinal, each in failed.items()} == {
        1: "http_400",
        2: "http_500",
        3: "http_429",
        4: "invalid_response",
        5: failed[5]["code"],
    }
    for ordinal, each in failed.items():
        assert each["batch"] == batch_id
        assert each["lane"] == lines[ordinal + 1].attributes["batchline.lane.id"]
        assert each["trace_id"] == lines[ordinal + 1].trace_id
    retried = [each for each in events if each["event"] == "attempt failed"]
    assert {each["ordinal"] for each in retried} == {2, 3, 4, 5}
    assert {each["batch"] for each in events if each["event"] in ("claimed", "batch ended")} == {batch_id}


def test_answers_that_break_the_rules_are_not_quoted(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    (tmp_path / "in.jsonl").write_bytes(a_line(0, "well"))
    (tmp_path / "schema.json").write_text('{"type": "object", "required": ["a"]}')
    with a_quoting_upstream() as upstream:
        done = batchline(
            *("run", "-v", "--log-json", str(tmp_path / "in.jsonl"), "--upstream", upstream),
            *("--schema", str(tmp_path / "schema.json"), "--max-attempts", "2", "--api-key-env", "THE_KEY"),
            *("--database", database_url, "--data-dir", str(tmp_path / "data")),
            THE_KEY=KEY,
            BATCHLINE_TRACES_ENDPOINT=collector.url,
            NO_PROXY="127.0.0.1",
        )
    assert done.returncode == 1, done.stderr
    assert planted_in(done.stderr) == []
    assert [found for body in collector.bodies if (found := planted_in(body.decode("latin-1")))] == []
    codes = [each["code"] for each in map(json.loads, done.stderr.splitlines()) if "code" in each]
    assert codes == ["invalid_output", "invalid_output"]
    assert {each.attributes["error.type"] for each in collector.named("line", "chat")} == {"invalid_output"}
