"""`dedupe` and `order` of POST /v1/batches, and paths that the operator allows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types import Batch as OpenAIBatch

from batchline.config.settings import ServerSettings
from batchline.model import ids
from batchline.store import steps
from batchline.store.session import Session
from tests.support.builders import a_worker, on, read
from tests.support.reuse import answer_all
from tests.support.scenes import database
from tests.support.serving import NOWHERE, Server, serving

WORKER = a_worker()
SETTINGS = ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4, endpoints=("/v1/score", "/rank/*"))


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), replace(SETTINGS)) as running,
    ):
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client("ours") as client:
        yield client


def upload(client: openai.OpenAI, prompts: list[str], url: str) -> str:
    lines = [
        {"custom_id": f"q-{n}", "method": "POST", "url": url, "body": {"model": "m", "input": prompt}}
        for n, prompt in enumerate(prompts)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def create(
    client: openai.OpenAI, prompts: list[str], url: str = "/v1/embeddings", **more: Any
) -> OpenAIBatch:
    endpoint: Any = url
    return client.batches.create(
        input_file_id=upload(client, prompts, url),
        endpoint=endpoint,
        completion_window="24h",
        extra_body=more,
    )


def extension(batch: OpenAIBatch) -> dict[str, Any]:
    found: dict[str, Any] = batch.model_dump()["batchline"]
    return found


def run(server: Server, batch: OpenAIBatch) -> list[int]:
    """Answer what is sent of the batch. Returns the line numbers."""

    async def answer(db: Session) -> list[int]:
        batch_id = ids.read(ids.BATCH, batch.id)
        assert batch_id is not None
        sent = await answer_all(db, WORKER, await read(db, batch_id))
        await steps.begin(db, batch_id)
        return sent

    return on(server.database, answer)


def test_a_batch_sends_identical_lines_once_if_it_asks_for_it(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, ["a", "b", "a"], dedupe=True)
    assert extension(batch)["duplicates"] == 0
    assert run(server, batch) == [1, 2]
    now = client.batches.retrieve(batch.id)
    assert extension(now)["duplicates"] == 1
    assert extension(now)["steps"] is None
    assert now.request_counts is not None
    assert now.request_counts.completed == 3
    assert run(server, create(client, ["a", "b", "a"])) == [1, 2, 3]


def test_the_order_is_shown(client: openai.OpenAI) -> None:
    assert extension(create(client, ["a", "b"], order="prefix"))["order"] == "prefix"
    assert extension(create(client, ["a", "b"]))["order"] is None


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"dedupe": True, "steps": "1,2"}, "dedupe"),
        ({"dedupe": True, "sample": 1}, "dedupe"),
        ({"order": "prefix", "sample": 1}, "order"),
        ({"order": "random"}, "order"),
        ({"dedupe": "yes"}, "dedupe"),
    ],
)
def test_what_does_not_go_together_is_refused(
    client: openai.OpenAI, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, ["a"], **more)
    assert refused.value.param == param


@pytest.mark.parametrize("url", ["/v1/score", "/rank/v2/top"])
def test_a_path_that_the_operator_allows_is_an_endpoint(
    server: Server, client: openai.OpenAI, url: str
) -> None:
    batch = create(client, ["a"], url)
    assert (batch.endpoint, batch.status) == (url, "in_progress")
    assert run(server, batch) == [1]


@pytest.mark.parametrize("url", ["/v1/rerank", "/rank/../admin", "/rank/x?y=1", "/rank"])
def test_no_other_path_is_an_endpoint(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, ["a"], url)
    assert refused.value.param == "endpoint"


def test_a_file_with_lines_for_another_path_fails(client: openai.OpenAI) -> None:
    endpoint: Any = "/v1/score"
    batch = client.batches.create(
        input_file_id=upload(client, ["a"], "/v1/rerank"), endpoint=endpoint, completion_window="24h"
    )
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].code == "invalid_url"
