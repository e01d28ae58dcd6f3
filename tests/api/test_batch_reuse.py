"""`reuse` of POST /v1/batches: a tenant that asks for it gets its own earlier answers, and nobody else's."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch as OpenAIBatch

from batchline.governance import keys
from batchline.model import ids
from batchline.store.session import Session
from tests.support.builders import a_file, a_worker, on, read
from tests.support.reuse import answer_all
from tests.support.scenes import database
from tests.support.serving import Server, serving

WORKER = a_worker()


@pytest.fixture
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture
def ours(server: Server) -> Iterator[openai.OpenAI]:
    with server.client("ours") as client:
        yield client


@pytest.fixture
def theirs(server: Server) -> Iterator[openai.OpenAI]:
    with server.client("theirs") as client:
        yield client


def create(server: Server, client: openai.OpenAI, lines: int, **more: Any) -> OpenAIBatch:
    """A batch over a new file of the client's tenant. Files have the same first lines."""

    async def upload(db: Session) -> str:
        key = await keys.authenticate(db, client.api_key)
        assert key is not None
        return ids.show(ids.FILE, await a_file(db, {"model": lines}, tenant=key.tenant))

    file_id = on(server.database, upload)
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def run(server: Server, batch: OpenAIBatch) -> list[int]:
    """Answer what is left of the batch. Returns the line numbers."""

    async def answer(db: Session) -> list[int]:
        batch_id = ids.read(ids.BATCH, batch.id)
        assert batch_id is not None
        return await answer_all(db, WORKER, await read(db, batch_id))

    return on(server.database, answer)


def reused(batch: OpenAIBatch) -> int:
    extras: Any = batch.model_dump()["batchline"]
    return int(extras["reused"])


def test_a_batch_reuses_answers_only_if_it_asks_for_it(server: Server, ours: openai.OpenAI) -> None:
    assert run(server, create(server, ours, 3)) == [1, 2, 3]
    without = create(server, ours, 5)
    assert (reused(without), run(server, without)) == (0, [1, 2, 3, 4, 5])
    requested = create(server, ours, 7, extra_body={"reuse": True})
    assert reused(requested) == 5
    assert requested.request_counts is not None
    assert requested.request_counts.completed == 5
    assert run(server, requested) == [6, 7]
    assert requested.usage is not None
    assert requested.usage.total_tokens == 0


def test_no_tenant_gets_answers_of_another(
    server: Server, ours: openai.OpenAI, theirs: openai.OpenAI
) -> None:
    run(server, create(server, theirs, 3))
    mine = create(server, ours, 3, extra_body={"reuse": True})
    assert (reused(mine), run(server, mine)) == (0, [1, 2, 3])


def test_the_same_idempotency_key_with_and_without_reuse_is_refused(
    server: Server, ours: openai.OpenAI
) -> None:
    batch = create(server, ours, 3)
    run(server, batch)
    again: dict[str, Any] = {
        "input_file_id": batch.input_file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "extra_headers": {"Idempotency-Key": "once"},
    }
    first = ours.batches.create(**again, extra_body={"reuse": True})
    assert reused(first) == 3
    assert ours.batches.create(**again, extra_body={"reuse": True}).id == first.id
    with pytest.raises(openai.UnprocessableEntityError):
        ours.batches.create(**again)


def test_reuse_must_be_true_or_false(server: Server, ours: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(server, ours, 1, extra_body={"reuse": "yes"})
    assert refused.value.param == "reuse"
