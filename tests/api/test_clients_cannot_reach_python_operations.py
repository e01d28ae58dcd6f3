"""Lines of clients never reach the functions of a Python app, whatever they contain."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import openai
import pytest

from batchline import Batchline
from batchline.model import DEFAULT_TENANT, ids
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import a_worker, on, sql, take
from tests.support.scenes import database
from tests.support.serving import Server, serving

CHAT: Final = "/v1/chat/completions"
SQUARE = Scope(keys=("python:square",))


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


def written(path: Path, url: str, model: str) -> Path:
    body = {"model": model, "messages": [{"role": "user", "content": "3"}]}
    path.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body}) + "\n")
    return path


def claimed(server: Server) -> list[str]:
    async def scenario(db: Session) -> list[str]:
        worker = a_worker()
        items = await take(db, worker, scope=SQUARE)
        await spans.release(db, worker.id)
        return [item.claim.url for item in items]

    return on(server.database, scenario)


def test_a_line_with_the_url_of_an_operation_is_refused(server: Server, tmp_path: Path) -> None:
    with server.client(DEFAULT_TENANT) as client:
        file = client.files.create(file=written(tmp_path / "a.jsonl", "python:square", "m"), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        assert batch.status == "failed"
    assert claimed(server) == []


def test_a_model_with_the_name_of_an_operation_is_a_model(server: Server, tmp_path: Path) -> None:
    with server.client(DEFAULT_TENANT) as client:
        file = client.files.create(file=written(tmp_path / "a.jsonl", CHAT, "python:square"), purpose="batch")
        client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert claimed(server) == []

    async def keys(db: Session) -> list[tuple[str, ...]]:
        return await sql(db, "SELECT key FROM batchline.lanes WHERE model = 'python:square'")

    assert on(server.database, keys) == [("model:python:square",)]


def test_the_items_of_an_operation_cannot_be_run_again_as_lines(server: Server, tmp_path: Path) -> None:
    async def submitted() -> None:
        async with Batchline(server.database, data_dir=tmp_path / "data") as app:

            @app.operation
            async def square(number: int) -> int:
                return number * number

            await app.submit(square, [3])

    asyncio.run(submitted())

    async def newest(db: Session) -> str:
        rows = await sql(db, "SELECT id FROM batchline.files ORDER BY created_at DESC LIMIT 1")
        return ids.show(ids.FILE, rows[0][0])

    file = on(server.database, newest)
    with server.client(DEFAULT_TENANT) as client:
        for endpoint in (CHAT, "python:square"):
            try:
                batch = client.batches.create(
                    input_file_id=file,
                    endpoint=endpoint,  # type: ignore[arg-type]
                    completion_window="24h",
                )
            except openai.BadRequestError:
                continue
            assert batch.status == "failed"
    assert claimed(server) == ["python:square"], "the item that was submitted, and no other"
