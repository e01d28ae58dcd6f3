"""The client whose calls are lines of a batch: what it returns, what it raises, and what it refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.responses import Response

from batchline import AsyncOpenAI, BatchClosed, BatchlineError, NotInBatch
from batchline.model import BatchStatus
from batchline.store import batches, calls, doctor
from batchline.store.session import Session
from tests.app.models.conftest import MakeClient
from tests.support.client_calls import answers
from tests.support.processes import Upstream
from tests.support.scripted_upstream import ANSWER, an_upstream_that_refuses, hangs, upstream_that
from tests.support.scripted_upstream import answers as says
from tests.support.waiting import eventually

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
WHOLE = {
    **ANSWER,
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Grüße 🎉"}}
    ],
}


async def only_batch(db: Session) -> Any:
    (batch,) = await batches.list_newest(db, "default", limit=10)
    return batch


async def test_answers_have_the_types_of_the_official_client(
    upstream: Upstream, new_client: MakeClient
) -> None:
    async with new_client(upstream.url) as client:
        chat = await client.chat.completions.create(model="m", messages=HELLO, temperature=0)
        response = await client.responses.create(model="m", input="Hello")
        text = await client.completions.create(model="m", prompt="Hello")
        vectors = await client.embeddings.create(model="m", input=["Hello", "you"])
    assert isinstance(client, openai.AsyncOpenAI)
    assert isinstance(chat, ChatCompletion)
    assert chat.choices[0].message.content
    assert chat._request_id
    assert isinstance(response, Response)
    assert response.output_text
    assert isinstance(text, Completion)
    assert text.choices[0].text
    assert isinstance(vectors, CreateEmbeddingResponse)
    assert [len(each.embedding) for each in vectors.data] == [8, 8]


async def test_many_calls_at_once_are_one_batch(
    upstream: Upstream, new_client: MakeClient, db: Session
) -> None:
    async with new_client(upstream.url, finish=True) as client:
        found = await answers(client, 500)
    assert len(found) == 500
    assert all(found)
    assert len(set(found)) > 400
    batch = await only_batch(db)
    assert (batch.total, batch.completed, batch.status) == (500, 500, BatchStatus.COMPLETED)
    assert batch.metadata == {"name": "calls"}
    assert upstream.stats()["executed"] == 500


async def test_the_database_is_consistent_while_a_batch_is_open_and_after_it_has_ended(
    upstream: Upstream, new_client: MakeClient, db: Session
) -> None:
    async with new_client(upstream.url) as client:
        await answers(client, 5)
        await client.embeddings.create(model="m", input="x")
    assert not (await doctor.examine(db)).findings
    async with new_client(upstream.url, finish=True) as client:
        await answers(client, 6)
    assert not (await doctor.examine(db)).findings


async def test_equal_calls_are_separate_lines(upstream: Upstream, new_client: MakeClient) -> None:
    async with new_client(upstream.url) as client:
        calls = (client.chat.completions.create(model="m", messages=HELLO) for _ in range(3))
        await asyncio.gather(*calls)
    assert upstream.stats()["executed"] == 3
    async with new_client(upstream.url) as client:
        for _ in range(4):
            await client.chat.completions.create(model="m", messages=HELLO)
    assert upstream.stats()["executed"] == 4


async def test_the_order_of_fields_does_not_matter(upstream: Upstream, new_client: MakeClient) -> None:
    async with new_client(upstream.url) as client:
        await client.chat.completions.create(
            model="m", messages=HELLO, extra_body={"metadata": {"a": "1", "b": "2"}}
        )
    async with new_client(upstream.url) as client:
        await client.chat.completions.create(
            model="m", messages=HELLO, extra_body={"metadata": {"b": "2", "a": "1"}}
        )
    assert upstream.stats()["executed"] == 1


async def test_another_name_is_another_batch(upstream: Upstream, new_client: MakeClient, db: Session) -> None:
    for name in ("one", "two"):
        async with new_client(upstream.url, name) as client:
            await answers(client, 2)
    assert upstream.stats()["executed"] == 4
    assert {
        (batch.metadata or {})["name"] for batch in await batches.list_newest(db, "default", limit=9)
    } == {
        "one",
        "two",
    }


async def test_a_finished_name_begins_a_new_batch(
    upstream: Upstream, new_client: MakeClient, db: Session
) -> None:
    for _ in range(2):
        async with new_client(upstream.url, finish=True) as client:
            await answers(client, 2)
    assert upstream.stats()["executed"] == 4
    assert len(await batches.list_newest(db, "default", limit=9)) == 2


async def test_after_an_error_the_batch_stays_open(
    upstream: Upstream, new_client: MakeClient, db: Session
) -> None:
    async def fails() -> None:
        async with new_client(upstream.url, finish=True) as client:
            await answers(client, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert (await only_batch(db)).accepting


async def test_an_error_answer_raises_the_official_exception(new_client: MakeClient) -> None:
    refusal = json.dumps({"error": {"message": "no such thing", "code": "bad", "type": "invalid"}}).encode()
    behaviour = says(400, refusal, b"x-request-id: req_7")
    async with upstream_that(behaviour) as scripted, new_client(scripted.url) as client:
        with pytest.raises(openai.BadRequestError, match="no such thing") as raised:
            await client.chat.completions.create(model="m", messages=HELLO)
    assert raised.value.status_code == 400
    assert raised.value.code == "bad"
    assert raised.value.request_id == "req_7"


async def test_a_failure_of_an_earlier_process_is_sent_again(new_client: MakeClient) -> None:
    behaviours = says(404, b'{"error": {"message": "no model"}}'), says(200, json.dumps(WHOLE).encode())
    async with upstream_that(*behaviours) as scripted:
        async with new_client(scripted.url) as client:
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="m", messages=HELLO)
        for _ in range(2):
            async with new_client(scripted.url) as client:
                found = await client.chat.completions.create(model="m", messages=HELLO)
                assert found.choices[0].message.content == "Grüße 🎉"
    assert len(scripted.requests) == 2


async def test_passing_errors_are_retried(new_client: MakeClient) -> None:
    behaviours = says(503), says(429), says(200, json.dumps(WHOLE).encode())
    async with upstream_that(*behaviours) as scripted, new_client(scripted.url) as client:
        assert await client.chat.completions.create(model="m", messages=HELLO)
    assert len(scripted.requests) == 3


async def test_concurrency_can_be_left_to_measuring(upstream: Upstream, new_client: MakeClient) -> None:
    async with new_client(upstream.url, concurrency="auto:2") as client:
        calls = [
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(number)}])
            for number in range(20)
        ]
        assert len(await asyncio.gather(*calls)) == 20
    assert upstream.stats()["peak_in_flight"] <= 2


async def test_a_call_without_an_answer_raises_a_connection_error(new_client: MakeClient) -> None:
    async with (
        upstream_that(lambda transport: transport.abort()) as scripted,
        new_client(scripted.url, max_attempts=1) as client,
    ):
        with pytest.raises(openai.APIConnectionError, match="connection_lost"):
            await client.chat.completions.create(model="m", messages=HELLO)


async def test_a_call_that_takes_too_long_raises_a_timeout_error(new_client: MakeClient) -> None:
    async with (
        upstream_that(hangs) as scripted,
        new_client(scripted.url, max_attempts=1, timeout=0.2) as client,
    ):
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="m", messages=HELLO)


async def test_what_cannot_be_a_line_is_refused_before_anything_is_stored(
    new_client: MakeClient, db: Session
) -> None:
    taken, url = an_upstream_that_refuses()
    with taken:
        async with new_client(url) as client:
            with pytest.raises(NotInBatch, match="stream=True: a batch has whole answers only"):
                await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            with pytest.raises(NotInBatch, match="extra_query"):
                await client.chat.completions.create(model="m", messages=HELLO, extra_query={"a": "b"})
            with pytest.raises(NotInBatch, match="GET /v1/responses/x cannot be a line"):
                await client.responses.retrieve("x")
            with pytest.raises(NotInBatch, match="model"):
                await client.chat.completions.create(model="", messages=HELLO)
            for name in ("files", "batches", "audio", "realtime"):
                with pytest.raises(AttributeError, match="use the official client"):
                    getattr(client, name)
    assert await batches.list_newest(db, "default", limit=1) == []


def test_options_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="give api_key_env"):
        AsyncOpenAI(upstream="http://127.0.0.1:1", batch="b", api_key="secret")
    with pytest.raises(TypeError, match="give max_attempts"):
        AsyncOpenAI(upstream="http://127.0.0.1:1", batch="b", max_retries=3)
    with pytest.raises(ValueError, match="http://"):
        AsyncOpenAI(upstream="127.0.0.1:1", batch="b")
    with pytest.raises(ValueError, match="1 to 255 characters"):
        AsyncOpenAI(upstream="http://127.0.0.1:1", batch="")
    with pytest.raises(ValueError, match="concurrency must be"):
        AsyncOpenAI(upstream="http://127.0.0.1:1", batch="b", concurrency=0)
    with pytest.raises(ValueError, match="concurrency must be"):
        AsyncOpenAI(upstream="http://127.0.0.1:1", batch="b", concurrency="auto:0")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ValueError, match="set the environment variable NO_SUCH_KEY"):
        AsyncOpenAI(upstream="http://127.0.0.1:1", batch="b", api_key_env="NO_SUCH_KEY")


async def test_the_api_key_is_read_from_the_environment_and_not_stored(
    new_client: MakeClient, db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-very-secret")
    async with (
        upstream_that(says(200, json.dumps(WHOLE).encode())) as scripted,
        new_client(scripted.url, api_key_env="MODEL_KEY") as client,
    ):
        await client.with_options(timeout=5).chat.completions.create(model="m", messages=HELLO)
    assert scripted.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert (await only_batch(db)).settings.api_key_env == "MODEL_KEY"


async def test_a_cancelled_batch_ends_the_calls_that_wait(new_client: MakeClient, db: Session) -> None:
    async with upstream_that(hangs) as scripted, new_client(scripted.url, concurrency=1) as client:
        waiting = asyncio.create_task(answers(client, 3))
        await eventually("a request", lambda: scripted.requests)
        await batches.close(db, (await only_batch(db)).id, "cancel")
        scripted.behaviours[:] = [says(500)]
        for transport in scripted.connections:
            transport.abort()
        with pytest.raises(BatchClosed, match="cancelled"):
            await waiting


async def test_calls_that_wait_when_the_client_closes_are_answered_by_the_next_one(
    new_client: MakeClient,
) -> None:
    async with upstream_that(hangs, says(200, json.dumps(WHOLE).encode())) as scripted:
        client = new_client(scripted.url)
        waiting = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await scripted.arrived.wait()
        await client.close()
        with pytest.raises(BatchlineError, match="client was closed"):
            await waiting
        async with new_client(scripted.url) as client:
            assert await client.chat.completions.create(model="m", messages=HELLO)
    keys = {request.headers["idempotency-key"] for request in scripted.requests}
    assert (len(scripted.requests), len(keys)) == (2, 1)


async def test_a_closed_client_says_so(new_client: MakeClient, upstream: Upstream, tmp_path: Path) -> None:
    client = new_client(upstream.url)
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.chat.completions.create(model="m", messages=HELLO)
    assert not (tmp_path / "data").exists()


async def test_answers_that_do_not_fit_into_one_look_are_all_returned(
    upstream: Upstream, new_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ROOM", 1)
    async with new_client(upstream.url) as client:
        assert all(await answers(client, 20))
    async with new_client(upstream.url) as client:
        assert all(await answers(client, 20))
    assert upstream.stats()["executed"] == 20


async def test_two_clients_of_one_name_can_both_finish(
    upstream: Upstream, new_client: MakeClient, db: Session
) -> None:
    one, two = (new_client(upstream.url) for _ in range(2))
    found = await asyncio.gather(answers(one, 30), answers(two, 30))
    assert found[0] == found[1]
    await asyncio.gather(one.close(finish=True), two.close(finish=True))
    assert upstream.stats()["executed"] == 30
    assert (await only_batch(db)).status is BatchStatus.COMPLETED
