"""/v1/files, driven by the official client, and by bare sockets where a client misbehaves."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import psutil
import psycopg
import pytest
from openai.types import FileObject

from batchline.batches.finalize import finalize_one
from batchline.config.settings import ServerSettings
from batchline.files.ingest import InputSource, ingest
from batchline.model import DEFAULT_TENANT, ids
from batchline.store.session import Session
from tests.support.builders import a_worker, complete, on, sql, take
from tests.support.serving import NOWHERE, Server, serving
from tests.support.uploading import CHAT, error_of, requests, stored
from tests.support.waiting import LIMIT, wait_for

SMALL = ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4, max_file_bytes=1_000_000, max_lines=1000)


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with serving(database_url, tmp_path, SMALL) as running:
        yield running


def upload(client: openai.OpenAI, content: bytes, name: str = "in.jsonl") -> FileObject:
    return client.files.create(file=(name, content), purpose="batch")


def kept(file: FileObject) -> str:
    return "inputs/" + file.id.removeprefix("file-")


# The life of a file


def test_a_file_exists_from_its_answer_until_it_is_deleted(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    content = requests(20)

    file = client.files.create(file=("../../in.jsonl", content), purpose="batch")

    FileObject.model_validate(file.model_dump(), strict=True)
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "in.jsonl",
        "batch",
        "processed",
    )
    assert file.expires_at == file.created_at + 30 * 86400
    assert client.files.wait_for_processing(file.id, max_wait_seconds=5) == file
    assert client.files.retrieve(file.id) == file
    assert client.files.list().data == [file]
    assert client.files.content(file.id).content == content
    assert stored(tmp_path) == [kept(file)]

    gone = client.files.delete(file.id)

    assert (gone.id, gone.object, gone.deleted) == (file.id, "file", True)
    assert client.files.list().data == []
    for act in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            act(file.id)


async def test_the_async_client_creates_lists_reads_and_deletes_files(server: Server) -> None:
    key = await asyncio.to_thread(server.key, "acme")
    async with server.async_client(key=key) as client:
        made = await asyncio.gather(
            *(client.files.create(file=(f"{n}.jsonl", requests(3)), purpose="batch") for n in range(5))
        )
        listed = [file.id async for file in client.files.list(limit=2)]
        assert sorted(listed) == sorted(file.id for file in made)
        file = await client.files.wait_for_processing(made[0].id, max_wait_seconds=5)
        assert (await client.files.content(file.id)).content == requests(3)
        assert (await client.files.delete(file.id)).deleted
        upload = await client.uploads.upload_file_chunked(
            file=requests(9),
            filename="x.jsonl",
            bytes=len(requests(9)),
            mime_type="application/jsonl",
            purpose="batch",
            part_size=200,
        )
        assert upload.file is not None
        assert (await client.files.content(upload.file.id)).content == requests(9)


def test_a_file_whose_lines_cannot_be_run_is_kept_with_its_errors(server: Server, database_url: str) -> None:
    client = server.client("acme")
    content = requests(2) + b"\nnothing\n" + requests(1)

    file = upload(client, content)

    assert client.files.wait_for_processing(file.id, max_wait_seconds=5).status == "error"
    assert file.status_details is not None
    assert file.status_details.startswith("line 4: not valid JSON")
    assert client.files.content(file.id).content == content
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(e.code, e.line) for e in batch.errors.data] == [
        ("invalid_json_line", 4),
        ("duplicate_custom_id", 5),
    ]
    ((lines,),) = on(database_url, lambda db: sql(db, "SELECT count(*) FROM batchline.lines"))
    assert lines == 0


def test_an_empty_file_and_one_with_too_many_lines_are_errors_of_content(server: Server) -> None:
    client = server.client("acme")

    empty, crowded = upload(client, b""), upload(client, requests(1001))

    assert (empty.status, empty.status_details) == ("error", "the file contains no requests")
    assert (crowded.status, crowded.status_details) == (
        "error",
        "line 1001: the file has more than 1,000 lines; split it",
    )
    assert client.files.content(empty.id).content == b""


def test_files_of_other_purposes_are_kept_as_they_are(server: Server) -> None:
    client = server.client("acme")
    for purpose in ("assistants", "fine-tune", "vision", "user_data", "evals"):
        file = client.files.create(file=("x.bin", b"\x00\xff"), purpose=purpose)
        assert (file.purpose, file.status, file.expires_at) == (purpose, "processed", None)
        assert client.files.content(file.id).content == b"\x00\xff"


def test_a_file_expires_as_requested(server: Server, database_url: str) -> None:
    client = server.client("acme")
    file = client.files.create(
        file=("in.jsonl", requests(1)),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at == file.created_at + 3600

    on(database_url, lambda db: sql(db, "UPDATE batchline.files SET expires_at = now()"))

    assert client.files.list().data == []
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_a_file_that_a_command_ingested_can_be_read_too(server: Server, database_url: str) -> None:
    content = requests(3, "a") + requests(2, "b").replace(b'"r', b'"s')

    async def take_in(_: Session) -> str:
        file = await ingest(
            database_url, [InputSource("x", [content])], tenant=DEFAULT_TENANT, filename="x.jsonl"
        )
        return ids.show(ids.FILE, file.id)

    client = server.client(DEFAULT_TENANT)
    read = client.files.content(on(database_url, take_in)).content

    assert [json.loads(line) for line in read.splitlines()] == [
        json.loads(line) for line in content.splitlines()
    ]


# What is refused


def test_an_invalid_upload_is_refused_with_the_parameter_and_leaves_nothing(
    server: Server, tmp_path: Path
) -> None:
    file = ("in.jsonl", requests(1))
    anchor, seconds = "expires_after[anchor]", "expires_after[seconds]"
    cases: list[tuple[dict[str, str], bool, str]] = [
        ({}, True, "purpose"),
        ({"purpose": "batch"}, False, "file"),
        ({"purpose": "mischief"}, True, "purpose"),
        ({"purpose": "batch_output"}, True, "purpose"),
        ({"purpose": "batch", anchor: "created_at"}, True, seconds),
        ({"purpose": "batch", seconds: "3600"}, True, anchor),
        ({"purpose": "batch", anchor: "now", seconds: "3600"}, True, anchor),
        *(
            ({"purpose": "batch", anchor: "created_at", seconds: value}, True, seconds)
            for value in ("3599", "2592001", "-1", "1e4", "٣٦٠٠", "9" * 5000)
        ),
    ]
    with server.http(server.key("acme")) as http:
        for fields, with_file, param in cases:
            files = {"file": file} if with_file else {"other": (None, "x")}
            answer = http.post("/v1/files", data=fields, files=files)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), fields
        for answer in (http.post("/v1/files", json={"purpose": "batch"}), http.post("/v1/files")):
            assert answer.status_code == 415
    assert stored(tmp_path) == []


def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    for size in (1_000_001, 9_000_000):
        with pytest.raises(openai.APIStatusError) as caught:
            upload(client, b"x" * size)
        assert caught.value.status_code == 413
        assert error_of(caught)["param"] == "file"
        assert caught.value.response.headers["x-should-retry"] == "false"
    assert upload(client, b"x" * 1_000_000).status == "error"
    assert len(stored(tmp_path)) == 1


def test_without_a_key_nothing_is_taken_in(server: Server, tmp_path: Path) -> None:
    with server.http("bl-wrong") as http:
        answer = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("x", b"x" * 500_000)})
    assert answer.status_code == 401
    assert stored(tmp_path) == []


def test_another_tenants_files_are_not_found(server: Server) -> None:
    file = upload(server.client("acme"), requests(1))
    stranger = server.client("other")

    for act in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
        with pytest.raises(openai.NotFoundError):
            act(file.id)
    assert stranger.files.list().data == []
    with pytest.raises(openai.NotFoundError) as caught:
        stranger.files.list(after=file.id)
    assert error_of(caught)["param"] == "after"


def test_malformed_file_ids_are_not_found(server: Server) -> None:
    with server.http(server.key("acme")) as http:
        for displayed in ("file-", "file-1", "nonsense", "file-" + "f" * 500, "%00", "batch_" + "0" * 32):
            assert http.get(f"/v1/files/{displayed}").status_code == 404, displayed
            assert http.get(f"/v1/files/{displayed}/content").status_code == 404, displayed


# Lists


def test_lists_page_through_all_files_in_both_orders(server: Server) -> None:
    client = server.client("acme")
    made = [client.files.create(file=(f"{n}", b"x"), purpose="user_data").id for n in range(7)]
    other = client.files.create(file=("v", b"x"), purpose="vision").id

    first = client.files.list(limit=3)

    assert (first.has_more, [file.id for file in first.data]) == (True, [other, *made[:4:-1]])
    assert [file.id for file in client.files.list(limit=3)] == [other, *reversed(made)]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == [*made, other]
    assert [file.id for file in client.files.list(limit=2, purpose="user_data")] == [*reversed(made)]
    assert client.files.list(purpose="batch").data == []


def test_a_list_continues_after_a_file_that_was_deleted_meanwhile(server: Server) -> None:
    client = server.client("acme")
    made = [client.files.create(file=(f"{n}", b"x"), purpose="user_data").id for n in range(4)]
    page = client.files.list(limit=2)
    client.files.delete(made[2])

    assert [file.id for file in client.files.list(limit=2, after=page.data[-1].id)] == [made[1], made[0]]


def test_a_list_has_limits(server: Server) -> None:
    with server.http(server.key("acme")) as http:
        for query in ("limit=0", "limit=10001", "limit=x", "order=up"):
            answer = http.get(f"/v1/files?{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.split("=")[0])


# Ranges


def test_an_interrupted_download_can_be_resumed(server: Server) -> None:
    key = server.key("acme")
    content = bytes(range(256)) * 4
    file = server.client(key=key).files.create(file=('größe "1".bin', content), purpose="user_data")
    path = f"/v1/files/{file.id}/content"
    with server.http(key) as http:
        whole = http.get(path)
        assert (whole.status_code, whole.content) == (200, content)
        assert whole.headers["accept-ranges"] == "bytes"
        assert whole.headers["content-length"] == "1024"
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert "filename*=UTF-8''gr%C3%B6%C3%9Fe" in whole.headers["content-disposition"]
        etag = whole.headers["etag"]

        ranges = [
            ("bytes=0-0", 0, 1),
            ("bytes=10-19", 10, 20),
            ("bytes=1000-", 1000, 1024),
            ("bytes=1000-9999", 1000, 1024),
            ("bytes=-24", 1000, 1024),
            ("bytes=-9999", 0, 1024),
        ]
        for requested, start, end in ranges:
            answer = http.get(path, headers={"range": requested})
            assert (answer.status_code, answer.content) == (206, content[start:end]), requested
            assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/1024"
            assert answer.headers["content-length"] == str(end - start)

        for requested in ("bytes=1024-", "bytes=5000-6000", "bytes=-0"):
            answer = http.get(path, headers={"range": requested})
            assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */1024"), requested

        for requested in ("bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=", "bytes=-"):
            assert http.get(path, headers={"range": requested}).status_code == 200, requested

        same = http.get(path, headers={"range": "bytes=0-9", "if-range": etag})
        changed = http.get(path, headers={"range": "bytes=0-9", "if-range": '"another"'})
        assert (same.status_code, changed.status_code, len(changed.content)) == (206, 200, 1024)
        assert http.get(path, headers={"if-none-match": etag}).status_code == 304

        head = http.head(path, headers={"range": "bytes=0-9"})
        assert (head.status_code, head.content, head.headers["content-length"]) == (206, b"", "10")
        assert http.head(path).headers["content-length"] == "1024"


# Results while running


def test_a_running_batchs_output_can_be_read_and_is_marked_incomplete(
    server: Server, database_url: str, tmp_path: Path
) -> None:
    client = server.client("acme")
    file = upload(client, requests(5))
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    output = batch.output_file_id
    assert output is not None
    worker = a_worker()

    async def finish_two(db: Session) -> None:
        items = await take(db, worker, 5)
        await complete(db, worker, [items[3], items[1]])

    on(database_url, finish_two)

    displayed = client.files.retrieve(output)
    assert (displayed.purpose, displayed.status) == ("batch_output", "processed")
    answer = client.files.with_raw_response.content(output)
    assert answer.content == b'{"answer": 2}\n{"answer": 4}\n'
    assert answer.headers["x-batchline-incomplete"] == "true"
    assert [answer.headers[f"x-batchline-{name}"] for name in ("total", "completed", "failed")] == [
        "5",
        "2",
        "0",
    ]
    with pytest.raises(openai.ConflictError):
        client.files.delete(output)
    with pytest.raises(openai.NotFoundError):
        server.client("other").files.content(output)

    async def finish_all(db: Session) -> None:
        await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
        other = a_worker()
        await complete(db, other, await take(db, other, 5))
        assert await finalize_one(db, server.objects, other)

    on(database_url, finish_all)

    answer = client.files.with_raw_response.content(output)
    assert len(answer.content.splitlines()) == 5
    assert "x-batchline-incomplete" not in answer.headers
    assert client.files.retrieve(output).bytes == len(answer.content)
    assert client.batches.retrieve(batch.id).output_file_id == output
    assert client.files.delete(output).deleted


# Idempotency


def test_fifty_concurrent_uploads_with_one_key_create_one_file_and_one_object(
    server: Server, database_url: str, tmp_path: Path
) -> None:
    client = server.client("acme", max_retries=0)
    content = requests(50)

    def send(_: int) -> str:
        made = client.files.create(
            file=("in.jsonl", content), purpose="batch", extra_headers={"Idempotency-Key": "once"}
        )
        return made.id

    with ThreadPoolExecutor(50) as pool:
        made = set(pool.map(send, range(50)))

    assert len(made) == 1
    assert [file.id for file in client.files.list()] == [*made]
    assert len(stored(tmp_path)) == 1
    ((lines,),) = on(database_url, lambda db: sql(db, "SELECT count(*) FROM batchline.lines"))
    assert lines == 50


def test_an_idempotency_key_belongs_to_one_file_of_one_tenant(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    again = {"Idempotency-Key": "k"}

    def send(
        content: bytes, name: str = "x", purpose: Any = "user_data", by: openai.OpenAI = client
    ) -> FileObject:
        return by.files.create(file=(name, content), purpose=purpose, extra_headers=again)

    first = send(b"one")
    assert send(b"one") == first
    for requested in ((b"two", "x", "user_data"), (b"one", "y", "user_data"), (b"one", "x", "batch")):
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            send(*requested)
        assert error_of(caught)["param"] == "Idempotency-Key"
    other = server.client("other")
    theirs = send(b"two", by=other)
    assert theirs.id != first.id
    assert (send(b"two", by=other), send(b"one")) == (theirs, first), "each gets its own again"
    assert len(stored(tmp_path)) == 2

    client.files.delete(first.id)
    with pytest.raises(openai.ConflictError) as conflict:
        send(b"one")
    assert conflict.value.response.headers["x-should-retry"] == "false"


# Those who leave half-way


def begin_upload(server: Server, key: str, size: int, sent: bytes) -> socket.socket:
    """A client that has announced `size` bytes and sent some of them."""
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {size}\r\n\r\n"
        '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        '--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n'
    )
    location = urlsplit(server.url)
    connection = socket.create_connection((str(location.hostname), int(location.port or 0)), timeout=30)
    connection.sendall(head.encode() + sent)
    return connection


def test_an_interrupted_upload_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    settings = ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4)
    with serving(database_url, tmp_path, settings) as server:
        connection = begin_upload(server, server.key("acme"), 50_000_000, b"x" * 20_000_000)
        wait_for("something of the upload to be stored", lambda: bool(stored(tmp_path)))

        connection.close()

        wait_for("the object store to be empty again", lambda: not stored(tmp_path))
    ((files,),) = on(database_url, lambda db: sql(db, "SELECT count(*) FROM batchline.files"))
    assert files == 0


def test_slow_uploads_do_not_keep_others_from_being_served(server: Server, tmp_path: Path) -> None:
    key = server.key("acme")
    slow = [begin_upload(server, key, 1000, b"{") for _ in range(30)]
    try:
        client = server.client(key=key)
        assert upload(client, requests(3)).status == "processed"
        assert len(client.files.list().data) == 1
    finally:
        for connection in slow:
            connection.close()
    wait_for("one object to be left", lambda: len(stored(tmp_path)) == 1)


# Processes


def ingesters(process: psutil.Process) -> list[psutil.Process]:
    found = process.children(recursive=True)
    return [child for child in found if "batchline.files.ingest_process" in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_an_ingest_whose_process_is_killed_stores_nothing_and_can_be_sent_again(
    server: Server, database_url: str
) -> None:
    client = server.client("acme")
    upload(client, requests(1), "first.jsonl")
    # It waits for the key of a transaction that does not end, until it is killed.
    held = on_hold(database_url)
    try:
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(
                client.files.create,
                file=("in.jsonl", requests(5)),
                purpose="batch",
                extra_headers={"Idempotency-Key": "held"},
            )
            wait_for("the ingest to wait", lambda: waiting(database_url))
            for child in ingesters(psutil.Process()):
                child.kill()
            with pytest.raises(openai.InternalServerError) as caught:
                sending.result(LIMIT)
            assert caught.value.status_code == 503
    finally:
        held.close()

    assert upload(client, requests(5)).status == "processed"
    assert len(client.files.list().data) == 2


def on_hold(database_url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A transaction that has used a key and does not end."""
    connection = psycopg.connect(database_url)
    connection.execute(
        "INSERT INTO batchline.idempotency (tenant, scope, key, fingerprint, object_id)"
        " VALUES ('acme', 'files', 'held', '', gen_random_uuid())"
    )
    return connection


def waiting(database_url: str) -> bool:
    query = """
        SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
    """
    ((count,),) = on(database_url, lambda db: sql(db, query))
    return bool(count)


ALONE = """
import asyncio, socket, sys
from pathlib import Path
import uvicorn
from batchline.api.app import create_app
from batchline.api.context import ApiContext
from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.files.objects import Objects
from batchline.store.pool import Sessions

url, folder = sys.argv[1:]
settings = ServerSettings(
    upstreams=(UpstreamSettings("nowhere", "http://127.0.0.1:9/v1"),),
    authentication=False, max_file_bytes=10**10, max_lines=10**8,
)
app = create_app(ApiContext(Sessions(url), Objects.at(Path(folder) / "objects"), url, settings))
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listening])
"""


@pytest.fixture
def alone(database_url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], openai.OpenAI]]:
    """A server in a process of its own, and a client for it."""
    command = [sys.executable, "-c", ALONE, database_url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            url = f"http://127.0.0.1:{port}/v1"
            yield process, openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=500)
        finally:
            process.kill()


class Generated(io.RawIOBase):
    """A file of so many lines that is nowhere."""

    name = "large.jsonl"

    def __init__(self, lines: int, width: int) -> None:
        self._line = b'{"custom_id": "%012d", "method": "POST", "url": "/v1/chat/completions", "body": '
        self._body = b'{"model": "m", "input": "' + b"x" * width + b'"}}\n'
        self._lines = lines
        self._next = 0
        self._rest = b""
        self.size = lines * (len(self._line % 0) + len(self._body))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = self.size if whence == 2 else offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        while len(self._rest) < len(buffer) and self._next < self._lines:
            many = range(self._next, min(self._next + 500, self._lines))
            self._rest += b"".join(self._line % n + self._body for n in many)
            self._next = many.stop
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def peak_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_large_upload_costs_little_memory(alone: tuple[subprocess.Popen[bytes], openai.OpenAI]) -> None:
    process, client = alone
    content = Generated(lines=120_000, width=1900)

    file = client.files.create(file=content, purpose="batch")  # type: ignore[arg-type]

    assert (file.bytes, file.status) == (content.size, "processed")
    assert content.size > 240 * 10**6
    (child,) = ingesters(psutil.Process(process.pid))
    peaks = {"server": peak_megabytes(process.pid), "ingest": peak_megabytes(child.pid)}
    assert sum(peaks.values()) < 240, f"less than the file; peak memory in MB: {peaks}"


def test_processes_that_read_files_end_with_their_parent(
    alone: tuple[subprocess.Popen[bytes], openai.OpenAI],
) -> None:
    process, client = alone
    upload(client, requests(1))
    (child,) = ingesters(psutil.Process(process.pid))

    os.kill(process.pid, signal.SIGKILL)

    wait_for("the process to end with its parent", lambda: not child.is_running() or _zombie(child))


def _zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
