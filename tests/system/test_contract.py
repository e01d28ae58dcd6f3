"""The contract beside the single calls: crashes before the answer, lists that grow, files that go."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
import psycopg
import pytest

from batchline.config.settings import ServerSettings
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.processes import simulated
from tests.support.scenes import database
from tests.support.server_process import ended, served
from tests.support.serving import NOWHERE, Server, serving
from tests.support.waiting import wait_for

CHAT: Final = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4)
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), settings) as running,
    ):
        yield running


def line(custom_id: str, **more: Any) -> bytes:
    requested = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"model": "m"}, **more}
    return json.dumps(requested).encode() + b"\n"


def count(url: str, table: str) -> int:
    ((number,),) = on(url, lambda db: sql(db, f"SELECT count(*) FROM batchline.{table}"))
    return int(number)


def send(server_url: str, path: str, body: bytes, headers: dict[str, str]) -> socket.socket:
    """A request whose answer is never read."""
    location = urlsplit(server_url)
    connection = socket.create_connection((location.hostname or "", location.port or 0), timeout=30)
    reported = {"host": location.netloc, "content-length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in reported.items())
    connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    return connection


def test_a_server_that_dies_between_commit_and_answer_returns_the_same_object_on_retry(
    database_url: str, tmp_path: Path
) -> None:
    form = (
        b'--edge\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--edge\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        + line("a")
        + b"\r\n--edge--\r\n"
    )
    key = ""

    def crash_after(path: str, body: bytes, kind: str, table: str) -> None:
        """The server is killed as soon as what was asked for is there."""
        nonlocal key
        with served(database_url, tmp_path, "--no-worker", "--upstream", "http://127.0.0.1:9") as server:
            key = server.key or key
            headers = {
                "authorization": f"Bearer {key}",
                "content-type": kind,
                "idempotency-key": f"of {table}",
            }
            connection = send(server.url, path, body, headers)
            wait_for(f"a row in {table}", lambda: count(database_url, table))
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(30)
            connection.close()

    crash_after("/v1/files", form, "multipart/form-data; boundary=edge", "files")
    file_id = displayed_id(database_url, "files", "file-")
    requested: dict[str, Any] = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    body = json.dumps(requested).encode()
    crash_after("/v1/batches", body, "application/json", "batches")

    with (
        served(database_url, tmp_path, "--no-worker", "--upstream", "http://127.0.0.1:9") as server,
        server.client(key) as client,
    ):
        again = client.files.create(
            file=("in.jsonl", line("a")), purpose="batch", extra_headers={"Idempotency-Key": "of files"}
        )
        assert again.id == file_id
        batch = client.batches.create(**requested, extra_headers={"Idempotency-Key": "of batches"})
        assert batch.id == displayed_id(database_url, "batches", "batch_")
        assert client.files.content(file_id).content == line("a")
    assert (count(database_url, "files"), count(database_url, "batches")) == (1, 1)


def displayed_id(url: str, table: str, prefix: str) -> str:
    ((found,),) = on(url, lambda db: sql(db, f"SELECT id FROM batchline.{table}"))
    return prefix + str(found.hex)


def test_pages_neither_repeat_nor_miss_what_was_there_while_new_batches_come(server: Server) -> None:
    client = server.client("pager")
    file = client.files.create(file=("in.jsonl", line("a")), purpose="batch")

    def create() -> str:
        return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id

    existing = [create() for _ in range(10)]
    seen: list[str] = []
    after: Any = openai.omit
    while True:
        page = client.batches.list(limit=3, after=after)
        seen += [batch.id for batch in page.data]
        create()
        create()
        if not page.has_more:
            break
        after = page.data[-1].id
    assert seen == existing[::-1]


def test_files_are_paged_alike_while_new_ones_come_and_old_ones_go(server: Server) -> None:
    client = server.client("file-pager")
    existing = [client.files.create(file=("x", b"x"), purpose="user_data").id for _ in range(9)]
    for order, expected in (("desc", existing[::-1]), ("asc", existing)):
        seen: list[str] = []
        after: Any = openai.omit
        while True:
            page = client.files.list(limit=2, after=after, order=order)  # type: ignore[arg-type]
            seen += [file.id for file in page.data]
            new = client.files.create(file=("x", b"x"), purpose="user_data").id
            client.files.delete(new)
            if not page.has_more:
                break
            after = page.data[-1].id
        assert seen == expected


def test_line_numbers_count_blank_lines_and_the_byte_order_mark_does_not(server: Server) -> None:
    client = server.client("editor")
    content = (
        b"\xef\xbb\xbf\n  \n" + line("a") + b"\r\n\t\n" + line("a") + b"\n{oops\n\n" + line("b", method="GET")
    )
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert batch.errors is not None
    assert [(error.line, error.code) for error in batch.errors.data or []] == [
        (6, "duplicate_custom_id"),
        (8, "invalid_json_line"),
        (10, "invalid_method"),
    ]


def test_the_first_hundred_errors_are_reported_in_the_order_of_their_lines(server: Server) -> None:
    client = server.client("many-errors")
    content = b"".join(b"\n" + (b"{\n" if nth % 2 else line("same")) for nth in range(300))
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert batch.errors is not None
    lines = [error.line for error in batch.errors.data or []]
    assert lines == [2 * nth for nth in range(2, 102)], "every second line from the fourth on is wrong"


def test_the_content_of_a_deleted_or_expired_file_is_not_found_for_ranges_either(server: Server) -> None:
    client = server.client("gone")
    files = [client.files.create(file=("in.jsonl", line("a")), purpose="batch").id for _ in range(2)]
    client.files.delete(files[0])

    async def expire(db: Session) -> None:
        query = "UPDATE batchline.files SET expires_at = now() WHERE id = %(id)s"
        await sql(db, query, id=files[1].removeprefix("file-"))

    on(server.database, expire)
    with server.http(client.api_key) as http:
        for file_id in files:
            for headers in ({}, {"range": "bytes=0-3"}, {"if-none-match": f'"{file_id[5:]}"'}):
                assert http.get(f"/v1/files/{file_id}/content", headers=headers).status_code == 404
            assert http.head(f"/v1/files/{file_id}/content").status_code == 404
            assert http.get(f"/v1/files/{file_id}").status_code == 404
            requested = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
            assert http.post("/v1/batches", json=requested).status_code == 404
    assert client.files.list().data == []


def test_a_lost_object_is_reported_before_the_answer_begins(server: Server) -> None:
    """A file whose row is there and whose object is not: never a 200 with nothing in it."""
    client = server.client("lost")
    file = client.files.create(file=("in.jsonl", line("a")), purpose="batch")
    asyncio.run(server.objects.delete([f"inputs/{file.id.removeprefix('file-')}"]))
    with server.http(client.api_key) as http:
        answer = http.get(f"/v1/files/{file.id}/content")
        part = http.get(f"/v1/files/{file.id}/content", headers={"range": "bytes=0-3"})
    assert {answer.status_code, part.status_code} <= {500, 503}, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_results_stay_when_their_input_is_deleted_while_the_batch_runs(
    database_url: str, tmp_path: Path
) -> None:
    content = b"".join(
        line(f"q{nth}", body={"model": "m", "messages": [{"role": "user", "content": str(nth)}]})
        for nth in range(500)
    )
    with (
        simulated("--latency", "100") as upstream,
        served(database_url, tmp_path, "--upstream", upstream.url) as server,
        server.client() as client,
    ):
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        with psycopg.connect(database_url) as connection:
            # The batch cannot end meanwhile, because its event cannot be written.
            connection.execute("LOCK TABLE batchline.outbox IN SHARE MODE")
            batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            client.files.delete(file.id)
            output = str(batch.output_file_id)
            incomplete = wait_for("some results while it runs", lambda: so_far(client, output))
        assert [json.loads(text)["custom_id"] for text in incomplete]
        over = ended(client, batch)
        assert over.request_counts is not None
        assert (over.status, over.request_counts.completed) == ("completed", 500)
        assert over.output_file_id == output, "the id that it was read under while it ran"
        assert len(client.files.content(output).text.splitlines()) == 500


def so_far(client: openai.OpenAI, file_id: str) -> list[str]:
    answer: httpx2.Response = client.files.with_raw_response.content(file_id).http_response
    return answer.text.splitlines() if answer.headers.get("x-batchline-incomplete") else []
