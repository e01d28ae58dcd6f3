"""Items of a stage of batchline.toml: what an upstream's answer means for the item."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batchline.config.settings import StageSettings, UpstreamSettings
from batchline.executors.python import PythonExecutor
from batchline.executors.python.http_runner import answer_reader
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retried, TimedOut, Usage
from batchline.model.emission import Emission
from batchline.operations.http_stage import HttpStage
from tests.support.http_executor import an_executor
from tests.support.python_operations import a_catalog, an_item
from tests.support.scripted_upstream import (
    ANSWER,
    Behaviour,
    answers,
    answers_well,
    hangs,
    upstream_that,
)

Run = Callable[[Item], Coroutine[Any, Any, Ran]]


def a_stage(url: str, **settings: Any) -> HttpStage:
    declared = StageSettings("ask", "small", "{{ text }}", **settings)
    return HttpStage(
        declared, UpstreamSettings("sim", url, max_attempts=3), lambda item: {"input": item["text"]}
    )


@asynccontextmanager
async def running(*behaviours: Behaviour, **settings: Any) -> AsyncIterator[tuple[HttpStage, Run]]:
    async with upstream_that(*behaviours) as upstream, an_executor() as http:
        stage = a_stage(upstream.url, **settings)
        executor = PythonExecutor(a_catalog(stage), http=http)
        yield stage, executor.run


async def test_an_answer_completes_the_item_with_its_fields_and_the_answer() -> None:
    async with running(answers_well, emits=("next", "other")) as (stage, run):
        item = an_item(stage, {"text": "a", "big": 2**70}, key="k")
        done = await run(item)
    assert isinstance(done, Completed)
    result = b'{"text":"a","big":1180591620717411303424,"ask":"Gr\xc3\xbc\xc3\x9fe \xf0\x9f\x8e\x89"}'
    assert done.item is item
    assert result in done.output
    assert done.emitted == (Emission("python:next", b"k", result), Emission("python:other", b"k", result))
    assert done.usage == Usage(12, 5, 34, 7)


@pytest.mark.parametrize(
    ("attempt", "kind", "code"), [(2, Retried, "http_500"), (3, Failed, "http_500")], ids=["again", "last"]
)
async def test_the_attempts_are_those_of_the_stage(attempt: int, kind: type[Ran], code: str) -> None:
    async with running(answers(500, b'{"error":{"message":"oh no"}}')) as (stage, run):
        item = an_item(stage, {"text": "a"}, attempt=attempt)
        ran = await run(item)
    assert isinstance(ran, kind)
    assert ran.item is item
    if isinstance(ran, Failed):
        assert json.loads(ran.output)["error"] == {"code": code, "message": "oh no"}
    else:
        assert isinstance(ran, Retried)
        assert (ran.error_code, ran.message) == (code, "oh no")


async def test_a_time_out_keeps_the_url_of_the_item_and_has_the_attempts_of_the_stage() -> None:
    async with running(hangs, timeout=0.1) as (stage, run):
        ran = await run(an_item(stage, {"text": "a"}, attempt=3))
    assert isinstance(ran, TimedOut)
    assert (ran.item.claim.url, ran.item.claim.attempts_left) == ("python:ask", False)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (json.dumps({**ANSWER, "choices": [{"message": {"content": None}}]}), "no_answer"),
        (json.dumps({**ANSWER, "extra": "number"}).replace('"number"', "1e999"), "invalid_response"),
    ],
)
async def test_an_answer_that_cannot_be_used_fails_and_counts_its_tokens(answer: str, code: str) -> None:
    async with running(answers(200, answer.encode()), emits=("next",)) as (stage, run):
        ran = await run(an_item(stage, {"text": "a"}))
    assert isinstance(ran, Failed)
    assert json.loads(ran.output)["error"]["code"] == code
    assert ran.usage.output_tokens == 34


async def test_an_item_that_is_no_object_fails_and_nothing_is_sent() -> None:
    async with running(hangs) as (stage, run):
        ran = await run(an_item(stage, "a text"))
    assert isinstance(ran, Failed)
    assert json.loads(ran.output)["error"]["code"] == "invalid_item"


async def test_a_worker_that_sends_nothing_leaves_stages_to_others() -> None:
    stage = a_stage("http://127.0.0.1:9")
    executor = PythonExecutor(a_catalog(stage))
    assert isinstance(await executor.run(an_item(stage, {"text": "a"})), Deferred)
    await executor.close()


@pytest.mark.parametrize(
    ("endpoint", "body", "answer"),
    [
        ("/v1/completions", {"choices": [{"text": "a"}]}, "a"),
        ("/v1/responses", {"output": [{"content": [{"text": "a"}, {"text": "b"}]}]}, "ab"),
        ("/v1/embeddings", {"data": [{"embedding": [0.5, 1]}]}, [0.5, 1]),
        ("/v1/embeddings", {"data": []}, None),
        ("/v1/moderations", {"results": [{"flagged": False}]}, {"results": [{"flagged": False}]}),
    ],
)
def test_the_answer_depends_on_the_endpoint(endpoint: str, body: Any, answer: Any) -> None:
    line = {"id": "1", "custom_id": "k", "response": {"status_code": 200, "body": body}, "error": None}
    assert answer_reader(endpoint)(json.dumps(line).encode()) == answer
