"""Secrets through success and every kind of failure: in no process's output, in no row but their own.

A server with its worker, a key of its upstream, a webhook with its secret, and keys of callers, one of them
wrong and one pasted where it does not belong; an upstream that fails in every way and quotes the key that it
was sent; a receiver that refuses, redirects and hangs up.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx2
import openai
import psycopg
from openai.types import Batch

from tests.support.server_process import Served, served
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Received, receiving

CHAT: Final = "/v1/chat/completions"
UPSTREAM_KEY = "upstream-key-0123456789abcdef"
WRONG_KEY = "bl-a-wrong-key-0123456789abcdef"
PASTED_KEY = "bl-a-pasted-key-0123456789abcdef"
HOOK_TOKEN = "hook-token-0123456789abcdef"
WAYS = ("well", "quote 400", "quote 401", "quote 429", "quote 500", "redirect", "drop", "garbage", "not json")
# The only places for what is needed again: the secret of a webhook, and its address.
OWN_COLUMNS = {("webhooks", "signing secret"), ("webhooks", "hook token")}


@dataclass(slots=True)
class Upstream:
    url: str
    # (headers, body) of every request.
    received: list[tuple[dict[str, str], Any]] = field(default_factory=list)


@contextmanager
def an_upstream() -> Iterator[Upstream]:
    """Fails in the way that the request asks for, and quotes the key that it was sent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            upstream.received.append((headers, body))
            quoted = {"error": {"message": f"The key {headers['authorization']} is not right."}}
            match body["way"].split():
                case ["well"]:
                    self._answer(200, json.dumps({"choices": [], "usage": {}}).encode())
                case ["quote", status]:
                    self._answer(int(status), json.dumps(quoted).encode())
                case ["redirect"]:
                    self._answer(302, b"", {"location": f"{upstream.url}/elsewhere?key={UPSTREAM_KEY}"})
                case ["drop"]:
                    self.close_connection = True
                case ["garbage"]:
                    self.wfile.write(f"{UPSTREAM_KEY}\r\n\r\n".encode())
                    self.close_connection = True
                case _:
                    self._answer(200, f"no JSON, but {UPSTREAM_KEY}".encode())

        def do_GET(self) -> None:
            self._answer(404, UPSTREAM_KEY.encode())

        def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    upstream = Upstream(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield upstream
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def requests() -> bytes:
    lines = (
        {
            "custom_id": f"{way} \u2713 \"'<>&%/../",
            "method": "POST",
            "url": CHAT,
            "body": {"model": "m", "way": way},
        }
        for way in WAYS
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def submit(client: openai.OpenAI, content: bytes) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    ends = ("completed", "failed", "cancelled", "expired")

    def found() -> Batch | None:
        now = client.batches.retrieve(batch.id)
        return now if now.status in ends else None

    over = wait_for(f"the end of {batch.id}", found)
    assert isinstance(over, Batch)
    return over


def misuse(server: Served, batch_id: str) -> None:
    """Keys where they do not belong, and what is refused in other ways."""
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        good = {"authorization": f"Bearer {server.key}"}
        for headers in (
            {"authorization": f"Bearer {WRONG_KEY}"},
            {"authorization": WRONG_KEY},
            {"authorization": f"Basic {base64.b64encode(server.key.encode()).decode()}"},
            {"x-api-key": server.key},
        ):
            assert http.get("/v1/batches", headers=headers).status_code == 401
        for path in (
            f"/v1/batches/{PASTED_KEY}",
            f"/v1/files/{PASTED_KEY}/content",
            f"/v1/models/{PASTED_KEY}",
            f"/nowhere/{PASTED_KEY}",
            f"/v1/batches?api_key={PASTED_KEY}&after={batch_id}",
        ):
            http.get(path, headers=good)
        http.post("/v1/batches", content=b"{", headers={**good, "content-type": "application/json"})
        http.post("/v1/batches", json={"input_file_id": PASTED_KEY, "x": server.key}, headers=good)
        http.post("/v1/webhook_endpoints", json={"url": f"http://x:{PASTED_KEY}@h/"}, headers=good)


def test_secrets_are_in_no_output_and_in_no_row_but_their_own(database_url: str, tmp_path: Path) -> None:
    config = tmp_path / "batchline.toml"
    answers = iter([500, 302, 200])

    def refuse_at_first(received: Received) -> tuple[int, dict[str, str]]:
        status = next(answers, 200)
        return status, {"location": f"{receiver.url}?again={HOOK_TOKEN}"} if status == 302 else {}

    with an_upstream() as upstream, receiving(refuse_at_first) as receiver:
        config.write_text(
            f"""
            [server]
            allow_private_webhooks = true
            [[upstreams]]
            name = "quoting"
            base_url = "{upstream.url}/v1"
            api_key_env = "THE_KEY"
            max_attempts = 2
            """
        )
        environment = {"THE_KEY": UPSTREAM_KEY}
        with (
            served(database_url, tmp_path, "--config", str(config), **environment) as server,
            server.client() as client,
        ):
            webhook = client.webhooks.create(
                name="mine",
                url=f"{receiver.url}?token={HOOK_TOKEN}",
                event_types=["batch.completed", "batch.failed"],
            )
            rotated = client.webhooks.rotate_secret(webhook.id, keep_old_secret_active_for_24_hours=True)
            over = ended(client, submit(client, requests()))
            assert over.request_counts is not None
            assert (over.status, over.request_counts.completed) == ("completed", 1)
            assert ended(client, submit(client, f'{{"custom_id": "{PASTED_KEY}"'.encode())).status == "failed"
            misuse(server, over.id)
            receiver.wait_for(4)
            displayed = [
                answer_of(client, over, webhook.id),
                client.webhooks.retrieve(webhook.id).model_dump_json(),
            ]
            displayed += [
                client.files.content(name).text for name in (over.output_file_id, over.error_file_id) if name
            ]
            key = server.key
        said = server.said[1:] if key in server.said[0] else server.said

    secrets = {
        "admin key": key,
        "upstream key": UPSTREAM_KEY,
        "wrong key": WRONG_KEY,
        "pasted key": PASTED_KEY,
        "signing secret": webhook.signing_secret.removeprefix("whsec_"),
        "new signing secret": rotated.signing_secret.removeprefix("whsec_"),
        "hook token": HOOK_TOKEN,
    }
    assert len(upstream.received) > len(WAYS), "some were tried again"
    for headers, _ in upstream.received:
        assert headers["authorization"] == f"Bearer {UPSTREAM_KEY}", "it was really sent"
        for name, value in headers.items():
            assert "\u2713" not in value, f"a custom_id is in {name}"
            assert "/../" not in value, f"a custom_id is in {name}"
    logged = "".join(server.complained) + "".join(said)
    assert "/v1/batches" in logged, "requests are logged"
    for name, secret in secrets.items():
        assert secret not in logged, f"the {name} is in the log"
    for name in ("admin key", "upstream key", "signing secret", "new signing secret"):
        for text in displayed:
            assert secrets[name] not in text, f"a caller was shown the {name}"
    positions = {
        (table, name)
        for table, text in rows(database_url)
        for name, secret in secrets.items()
        if secret in text
    }
    assert positions <= {*OWN_COLUMNS, ("webhooks", "new signing secret")}, positions


def answer_of(client: openai.OpenAI, batch: Batch, webhook_id: str) -> str:
    """What the API says of all of it."""
    deliveries = client.get(f"/webhook_endpoints/{webhook_id}/deliveries", cast_to=httpx2.Response)
    return client.batches.retrieve(batch.id).model_dump_json() + deliveries.text


def rows(url: str) -> Iterator[tuple[str, str]]:
    """Every row of every table."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'batchline'"
        ).fetchall()
        for (table,) in tables:
            for (text,) in connection.execute(f"SELECT t::text FROM batchline.{table} AS t".encode()):
                yield table, text
