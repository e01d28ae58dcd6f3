"""What strangers, tenants and their files may try: others' objects, other hosts, our memory and time."""

import gzip
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest
from structlog.testing import capture_logs

from batchline.api import limits
from batchline.api import server as http_server
from batchline.cli.logs import set_up_logging
from batchline.config.settings import ServerSettings
from batchline.model.ids import PART, new_id, show
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.raw_http import spoken
from tests.support.scenes import database
from tests.support.serving import NOWHERE, Server, serving
from tests.support.slow_readers import a_running_output, is_let_go, stalled
from tests.support.waiting import wait_for

CHAT: Final = "/v1/chat/completions"
ENVELOPE = {"message", "type", "param", "code"}
PUBLIC_URL = "https://93.184.216.34/hook"


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4, max_file_bytes=1_000_000)
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), settings) as running,
    ):
        yield running


def line(custom_id: Any = "a", url: Any = CHAT, body: Any = None) -> bytes:
    requested = {"custom_id": custom_id, "method": "POST", "url": url, "body": body or {"model": "m"}}
    return json.dumps(requested).encode() + b"\n"


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json", answer.text
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == ENVELOPE
    assert isinstance(body["error"]["message"], str)
    assert isinstance(body["error"]["type"], str)
    return dict(body["error"])


# Other people's objects


@dataclass(frozen=True, slots=True)
class Owned:
    """Something of everything."""

    key: str
    file: str
    output: str
    batch: str
    upload: str
    part: str
    webhook: str
    response: str

    @property
    def ids(self) -> dict[str, str]:
        """By the names that paths have for them."""
        return {
            "file_id": self.file,
            "batch_id": self.batch,
            "upload_id": self.upload,
            "webhook_endpoint_id": self.webhook,
            "response_id": self.response,
        }


def owner(server: Server, tenant: str) -> Owned:
    key = server.key(tenant)

    with server.client(key=key) as client:
        file = client.files.create(file=("in.jsonl", line()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        upload = client.uploads.create(bytes=5, filename="x", mime_type="text/plain", purpose="batch")
        part = client.uploads.parts.create(upload.id, data=b"hello")
        webhook = client.webhooks.create(name="w", url=PUBLIC_URL, event_types=["batch.completed"])
        response = client.responses.create(model="m", input="hi", background=True)
    assert batch.output_file_id is not None
    return Owned(key, file.id, batch.output_file_id, batch.id, upload.id, part.id, webhook.id, response.id)


def whole_tenant(server: Server, tenant: str) -> list[Any]:
    """Every row that is the tenant's, as the database has it."""

    async def read(db: Session) -> list[Any]:
        found: list[Any] = []
        for table in ("files", "batches", "uploads", "webhooks"):
            rows = await sql(
                db, f"SELECT t::text FROM batchline.{table} AS t WHERE tenant = %(t)s ORDER BY 1", t=tenant
            )
            found += [(table, text) for (text,) in rows]
        parts = (
            "SELECT p::text FROM batchline.upload_parts AS p"
            " JOIN batchline.uploads AS u ON u.id = upload_id WHERE tenant = %(t)s"
        )
        return found + await sql(db, parts, t=tenant)

    return on(server.database, read)


BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/uploads/{upload_id}/complete"): {"part_ids": []},
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}"): {"name": "mine now"},
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/test"): {"event_type": "batch.completed"},
}

QUERIES = {"/v1/batches/{batch_id}/attempts": {"custom_id": "a"}}


def test_no_path_of_the_document_takes_another_tenants_ids(server: Server) -> None:
    theirs, stranger = owner(server, "victim"), server.key("stranger")
    before = whole_tenant(server, "victim")
    with server.http(stranger) as http:
        paths: dict[str, dict[str, Any]] = http.get("/openapi.json").json()["paths"]
        tried = 0
        for path, methods in paths.items():
            names = re.findall(r"{([^}]+)}", path)
            if not path.startswith("/v1/") or not names or path == "/v1/models/{model}":
                continue
            for ids in (theirs.ids, {**theirs.ids, "file_id": theirs.output}):
                assert set(names) <= set(ids), f"{path}: whose id does it take? Add it here"
                address = path.format(**ids)
                for method in (name.upper() for name in methods):
                    sent: dict[str, Any] = {}
                    if path.endswith("/parts"):
                        sent = {"files": {"data": b"mine"}}
                    elif method == "POST":
                        sent = {"json": BODIES.get((method, path), {})}
                    answer = http.request(method, address, params=QUERIES.get(path), **sent)
                    assert answer.status_code == 404, f"{method} {path} answered {answer.status_code}"
                    assert error_of(answer)["code"] == "not_found"
                    tried += 1
        assert tried > 20
        assert http.head(f"/v1/files/{theirs.file}/content").status_code == 404
    assert whole_tenant(server, "victim") == before, "and nothing of it has changed"


def test_no_body_and_no_query_takes_another_tenants_ids_either(server: Server) -> None:
    theirs, mine = owner(server, "victim-2"), owner(server, "stranger-2")
    with server.http(mine.key) as http:
        batch = {"input_file_id": theirs.file, "endpoint": CHAT, "completion_window": "24h"}
        assert http.post("/v1/batches", json=batch).status_code == 404
        batch["input_file_id"] = theirs.output
        assert http.post("/v1/batches", json=batch).status_code == 404
        assert http.get("/v1/batches", params={"after": theirs.batch}).status_code == 404
        assert http.get("/v1/webhook_endpoints", params={"after": theirs.webhook}).status_code == 404
        cursor = http.get("/v1/files", params={"after": theirs.file})
        unknown = http.get("/v1/files", params={"after": theirs.file[:-1] + "0"})
        assert (cursor.status_code, unknown.status_code) == (404, 404), "as for one that is nobody's"
        part_ids = [theirs.part]
        answer = http.post(f"/v1/uploads/{mine.upload}/complete", json={"part_ids": part_ids})
        unheard = http.post(f"/v1/uploads/{mine.upload}/complete", json={"part_ids": [show(PART, new_id())]})
        assert (answer.status_code, unheard.status_code) == (400, 400)
        lists = {
            path: [found["id"] for found in http.get(path).json()["data"]]
            for path in ("/v1/files", "/v1/batches", "/v1/webhook_endpoints")
        }
    for path, ids in lists.items():
        assert ids, path
        assert not {theirs.file, theirs.output, theirs.batch, theirs.webhook} & set(ids), path


def test_an_idempotency_key_does_not_replay_another_tenants_object(server: Server) -> None:
    """Idempotency keys are guessable: `1`, a date. They must not be a way to another tenant's objects."""
    headers = {"Idempotency-Key": "1"}
    made = [
        server.client(tenant).files.create(file=("in.jsonl", line()), purpose="batch", extra_headers=headers)
        for tenant in ("first-guess", "second-guess")
    ]
    assert made[0].id != made[1].id


# Other hosts and other paths


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/v1/chat/completions",
        "https://169.254.169.254/v1/chat/completions",
        "//evil.example/v1/chat/completions",
        "\\\\evil.example\\v1\\chat\\completions",
        "/\\evil.example/v1/chat/completions",
        "@evil.example/v1/chat/completions",
        "/v1/chat/completions@evil.example",
        "/v1/chat/completions/../../../admin",
        "/v1/../v1/chat/completions",
        "/v1/chat/./completions",
        "/v1/%2e%2e/admin",
        "/v1%2fchat%2fcompletions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions%2f..%2fadmin",
        "/v1/chat/completions%00",
        "/v1/chat/completions\x00",
        "/v1/chat/completions?stream=true",
        "/v1/chat/completions#x",
        "/v1/chat/completions;x=y",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\n\r\nGET /admin",
        "/v1/chat/completions\r\nX-Injected: yes",
        "/v1/chat/completions\n",
        " /v1/chat/completions",
        "v1/chat/completions",
        "/v1/chat/completıons",
        "/v1/chat/completions\u2028",
        "file:///etc/passwd",
        "",
        7,
        None,
        ["/v1/chat/completions"],
        {"path": "/v1/chat/completions"},
    ],
)
def test_a_line_cannot_be_sent_anywhere_but_to_a_path_of_the_list(server: Server, url: Any) -> None:
    client = server.client("steerer")
    file = client.files.create(file=("in.jsonl", line("good") + line("bad", url)), purpose="batch")
    assert file.status == "error"
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert batch.status == "failed"
    assert batch.errors is not None
    (error,) = batch.errors.data or []
    assert error.line == 2
    assert error.code in ("invalid_url", "missing_required_parameter"), error


def test_a_url_on_the_list_that_is_not_the_batchs_is_refused_too(server: Server) -> None:
    client = server.client("steerer")
    content = line("a") + line("b", "/v1/embeddings")
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert batch.errors is not None
    assert [(error.code, error.line) for error in batch.errors.data or []] == [("url_mismatch", 2)]


@pytest.mark.parametrize(
    "custom_id",
    [
        "a\r\nX-Injected: yes",
        "a\nb",
        "a\rb",
        "\x00",
        "a\x7f",
        "\x1b[2J",
        "a\u0085b",
        "x" * 513,
        "",
        7,
        None,
        [],
    ],
)
def test_a_custom_id_that_could_break_a_line_or_a_header_is_refused(server: Server, custom_id: Any) -> None:
    client = server.client("namer")
    file = client.files.create(file=("in.jsonl", line(custom_id)), purpose="batch")
    assert file.status == "error"
    assert file.status_details is not None
    assert file.status_details.startswith("line 1: ")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/..%2f..%2fetc%2fpasswd/content",
        "/v1/files/%2e%2e/content",
        "/v1/files/..%5c..%5cx/content",
        "/v1/files/{file}%00/content",
        "/v1/files/{file}%0d%0aX-Injected:%20yes/content",
        "/v1/files/%27%20OR%201=1--",
        "/v1/batches/{batch}%0a",
        "/v1/batches/..%2ffiles",
        "//v1/batches",
        "/v1//batches",
        "/v1/batches/",
        "/V1/batches",
        "/v1/./batches/{batch}",
        "/v1/batches;/{batch}",
        "/v1/files/" + "x" * 5000,
        "/v1/files/file-" + "%F0%9F%98%80" * 20,
        "/v1/files/%ff%fe",
    ],
)
def test_strange_paths_lead_nowhere(server: Server, path: str) -> None:
    mine = owner(server, "stroller-" + new_id().hex[:12])
    location = urlsplit(server.url)
    # By hand: a client would put the path right before it sends it.
    head = f"GET {path.format(file=mine.file, batch=mine.batch)} HTTP/1.1\r\nhost: {location.netloc}\r\n"
    answer = spoken(server, f"{head}authorization: Bearer {mine.key}\r\nconnection: close\r\n\r\n".encode())
    head_of, _, body = answer.partition(b"\r\n\r\n")
    assert head_of.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), answer[:300]
    assert b"x-injected" not in head_of.lower()
    assert set(json.loads(body)["error"]) == ENVELOPE


def test_a_path_cannot_inject_lines_into_the_log(
    server: Server,
) -> None:
    def is_about(entry: Any) -> bool:
        """The line of an earlier request may come late."""
        return bool(entry["event"] == "request" and "all is well" in entry["path"])

    set_up_logging(verbose=True)
    with capture_logs() as logged, server.http() as http:
        http.get("/v1/x%0a2026-01-01 [info] all is well%0d%1b[31m%e2%80%a8" + "y" * 5000)
        # The answer may be here before its line is in the log.
        wait_for("the line", lambda: any(map(is_about, logged)))
    (path,) = [entry["path"] for entry in logged if is_about(entry)]
    assert path.isprintable()
    assert len(path) < 300


def test_a_filename_cannot_inject_headers(server: Server) -> None:
    client = server.client("filer")
    name = 'a"; filename="b\r\nSet-Cookie: x=1\r\n\r\n<script>.jsonl'
    file = client.files.create(file=(name, line()), purpose="batch")
    with server.http(client.api_key) as http:
        headers = http.get(f"/v1/files/{file.id}/content").headers
    assert "set-cookie" not in headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-disposition"].startswith("attachment; ")
    assert headers["content-disposition"].count('"') == 2


# Our memory and our time


def test_a_request_that_is_not_http_gets_the_error_envelope(server: Server) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"hello there\r\n\r\n"):
        answer = spoken(server, nonsense)
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == ENVELOPE


@pytest.mark.parametrize("form", ["one header", "many headers", "request line", "name"])
def test_ten_megabytes_of_head_are_not_taken(server: Server, form: str) -> None:
    beginning, piece = {
        "one header": (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: ", b"x" * 65_536),
        "many headers": (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"a: b\r\n" * 10_000),
        "request line": (b"GET /", b"x" * 65_536),
        "name": (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"x" * 65_536),
    }[form]
    sent = 0

    def send(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(beginning)
        while sent < 10_000_000:
            connection.sendall(piece)
            sent += len(piece)

    answer = spoken(server, send)
    # It may hang up while we are still sending, and then its answer is lost.
    assert not answer or answer.split()[1] in (b"400", b"431"), answer[:200]
    assert answer or sent < 10_000_000
    with server.http() as http:
        assert http.get("/healthz").status_code == 200


def test_a_head_that_trickles_times_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_HEAD_WITHIN", 0.3)
    answer = spoken(server, b"GET /healthz HTTP/1.1\r\nhost:")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_trickles_times_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_WITHIN", 0.3)
    head = b"POST /v1/batches HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    key = b"authorization: Bearer %b\r\n" % server.key().encode()
    answer = spoken(server, head + key + b"content-length: 1000\r\nconnection: close\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == ENVELOPE


def test_a_body_that_trickles_after_its_refusal_times_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection on which data arrives is never idle, so uvicorn alone would keep it for ever."""
    monkeypatch.setattr(limits, "BODY_WITHIN", 0.3)

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"
        connection.settimeout(0.02)
        for _ in range(5000):
            connection.sendall(b"x")
            with suppress(TimeoutError):
                while connection.recv(65_536):
                    pass
                return
        raise AssertionError("the server still waits for the body")

    spoken(server, trickle)


def test_a_reader_that_takes_nothing_is_let_go(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAKEN_WITHIN", 0.3)
    settings = ServerSettings(upstreams=(NOWHERE,), sessions=4, streams=2)
    with serving(database_url, tmp_path, settings) as server:
        key = server.key()
        output = on(database_url, a_running_output)
        with stalled(server.url, key, output, 2) as readers:
            wait_for("the server to let go of both", lambda: all(map(is_let_go, readers)))


def begun_upload(server: Server, key: str) -> socket.socket:
    """A form whose file has begun and does not go on."""
    location = urlsplit(server.url)
    connection = socket.create_connection((location.hostname or "", location.port or 0), timeout=30)
    part = b'--edge\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n{'
    head = f"POST /v1/files HTTP/1.1\r\nhost: {location.netloc}\r\nauthorization: Bearer {key}\r\n"
    form = "content-type: multipart/form-data; boundary=edge\r\ncontent-length: 100000\r\n\r\n"
    connection.sendall((head + form).encode() + part)
    return connection


def test_a_tenants_slow_uploads_keep_no_other_tenant_out(server: Server) -> None:
    key = server.key("snail")
    # More than there are places for all tenants together.
    slow = [begun_upload(server, key) for _ in range(80)]
    try:
        file = server.client("hare").files.create(file=("in.jsonl", line()), purpose="batch")
        assert file.status == "processed"
        assert server.client(key=key).files.list().data == [], "it is served too, but for uploads"
    finally:
        for connection in slow:
            connection.close()


def form(*parts: bytes, end: bytes = b"--edge--\r\n") -> bytes:
    return b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + end


def field(name: bytes, value: bytes) -> bytes:
    return b'content-disposition: form-data; name="%b"\r\n\r\n%b' % (name, value)


FILE_PART = b'content-disposition: form-data; name="file"; filename="x"\r\n\r\n' + line()
BOMBS = {
    "ten thousand parts": form(*[field(b"x%d" % nth, b"") for nth in range(10_000)], FILE_PART),
    "ten thousand empty parts": b"--edge\r\n\r\n" * 10_000 + b"--edge--\r\n",
    "a part with a thousand headers": form(b"x: y\r\n" * 1000 + FILE_PART),
    "a header of a megabyte": form(b"x: " + b"y" * 1_000_000 + b"\r\n" + FILE_PART),
    "a field of a megabyte": form(field(b"purpose", b"b" * 1_000_000), FILE_PART),
    "a name of a megabyte": form(field(b"n" * 1_000_000, b""), FILE_PART),
    "the same field twice": form(field(b"purpose", b"batch"), field(b"purpose", b"batch"), FILE_PART),
    "two files": form(field(b"purpose", b"batch"), FILE_PART, FILE_PART),
    "forms in a form": form(b"content-type: multipart/mixed; boundary=b\r\n\r\n--b\r\n" * 500),
    "nothing but boundaries": b"--edge\r\n" * 50_000,
    "no end": form(field(b"purpose", b"batch"), FILE_PART, end=b""),
    "much after the end": form(field(b"purpose", b"batch"), FILE_PART) + b"x" * 4_000_000,
    "a file that is too large": form(field(b"purpose", b"batch"), FILE_PART + b"x" * 1_100_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_form_that_is_a_bomb_is_refused_and_leaves_nothing(server: Server, bomb: str) -> None:
    key = server.key("bomber-" + new_id().hex)
    with server.http(key) as http:
        headers = {"content-type": "multipart/form-data; boundary=edge"}
        answer = http.post("/v1/files", content=BOMBS[bomb], headers=headers)
        assert answer.status_code in (400, 413), answer.text
        error_of(answer)
        assert http.get("/v1/files").json()["data"] == []


def test_a_compressed_body_is_not_unpacked(server: Server) -> None:
    with server.http(server.key()) as http:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        answer = http.post("/v1/batches", content=gzip.compress(b" " * 10_000_000), headers=headers)
    assert answer.status_code == 400
    error_of(answer)


@pytest.mark.parametrize("deep", [b"[" * 400_000, b"[" * 200_000 + b"]" * 200_000, b'{"a":' * 150_000])
def test_deep_json_is_refused_by_every_call_that_takes_json(server: Server, deep: bytes) -> None:
    mine = owner(server, "diver-" + new_id().hex)
    with server.http(mine.key) as http:
        paths: dict[str, dict[str, Any]] = http.get("/openapi.json").json()["paths"]
        tried = 0
        for path, methods in paths.items():
            content = methods.get("post", {}).get("requestBody", {}).get("content", {})
            if not path.startswith("/v1/") or "application/json" not in content:
                continue
            for body in (deep, b'{"metadata": ' + deep + b"}", b'{"part_ids": ' + deep + b"}"):
                headers = {"content-type": "application/json"}
                answer = http.post(path.format(**mine.ids), content=body, headers=headers)
                assert answer.status_code == 400, (path, answer.text)
                error_of(answer)
                tried += 1
        assert tried >= 18
    assert server.client(key=mine.key).batches.retrieve(mine.batch).status == "in_progress"


def test_deep_json_in_a_line_is_an_error_of_that_line(server: Server) -> None:
    client = server.client("diver")
    deep = b'{"custom_id": "b", "method": "POST", "url": "%b", "body": %b}\n' % (
        CHAT.encode(),
        b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    )
    file = client.files.create(file=("in.jsonl", line() + deep), purpose="batch")
    assert file.status == "error"
    assert file.status_details is not None
    assert file.status_details.startswith("line 2: ")
