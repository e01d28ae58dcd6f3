"""Stages of batchline.toml: the answer of one model is the input of the next."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchline import Batchline, Context, InvalidApp, InvalidItem
from batchline.app.waiting import read_batch
from batchline.operations.operation import PythonOperation
from tests.support.scripted_upstream import answers, answers_well, upstream_that
from tests.support.stage_files import SUMMARIZE, TRANSLATE, stage_file
from tests.support.worded_upstream import WordedUpstream, worded_upstream


@pytest.fixture
def upstream() -> Iterator[WordedUpstream]:
    with worded_upstream() as upstream:
        yield upstream


@pytest.fixture
async def piped(database_url: str, tmp_path: Path, upstream: WordedUpstream) -> AsyncIterator[Batchline]:
    """An app with two stages."""
    config = stage_file(tmp_path, upstream.url, SUMMARIZE, TRANSLATE)
    async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
        yield app


async def values(batch: Any, stage: PythonOperation[Any, Any] | None = None) -> list[Any]:
    return [result.get() async for result in batch.results(stage=stage)]


async def test_the_answer_of_one_stage_is_in_the_item_of_the_next(piped: Batchline) -> None:
    batch = await piped.submit(piped.stage("summarize"), [{"id": n, "text": f"text {n}"} for n in range(20)])
    progress = await batch.wait()
    assert (progress.completed, progress.failed, progress.total) == (40, 0, 40)
    found = await values(batch, piped.stage("translate"))
    assert sorted(found, key=lambda value: int(value["id"])) == [
        {
            "id": n,
            "text": f"text {n}",
            "summary": f"You said: Summarize: text {n}",
            "translate": f"You said: Translate: You said: Summarize: text {n}",
        }
        for n in range(20)
    ]


async def test_requests_have_the_model_the_system_message_and_the_parameters_of_the_stage(
    database_url: str, tmp_path: Path
) -> None:
    stage = """
    [stages.ask]
    model = "small"
    prompt = "{{ question }}?"
    system = "Answer {{ name }}."
    params = { temperature = 0, stop = ["."] }
    """
    async with upstream_that(answers_well) as upstream:
        config = stage_file(tmp_path, f"{upstream.url}/v1", stage)
        async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
            found = await app.amap(app.stage("ask"), [{"question": "Who", "name": "Ada"}])
    assert found == [{"question": "Who", "name": "Ada", "ask": "Grüße 🎉"}]
    (request,) = upstream.requests
    assert request.path == "/v1/chat/completions"
    assert request.body == (
        b'{"model":"small","messages":[{"role":"system","content":"Answer Ada."},'
        b'{"role":"user","content":"Who?"}],"temperature":0,"stop":["."]}'
    )


async def test_functions_emit_to_stages_and_stages_to_functions(
    database_url: str, tmp_path: Path, upstream: WordedUpstream
) -> None:
    stage = """
    [stages.ask]
    model = "small"
    prompt = "{{ text }}"
    output = "answer"
    emits = ["store"]
    """
    stored: list[str] = []
    config = stage_file(tmp_path, upstream.url, stage)
    async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:

        @app.operation
        async def store(row: dict[str, str]) -> int:
            stored.append(row["answer"])
            return len(stored)

        @app.operation(emits=[app.stage("ask")])
        async def split(line: str, ctx: Context) -> None:
            for word in line.split():
                await ctx.emit("ask", {"text": word}, key=word)

        batch = await app.submit(split, ["a b", "c"])
        progress = await batch.wait()
        assert {name: stage.completed for name, stage in progress.stages.items()} == {
            "split": 2,
            "ask": 3,
            "store": 3,
        }
        assert sorted(stored) == [f"You said: {word}" for word in "abc"]
        assert {result.key async for result in batch.results(stage=store)} == {"a", "b", "c"}


async def test_an_item_without_a_field_of_the_prompt_fails_alone_and_sends_nothing(
    piped: Batchline, upstream: WordedUpstream
) -> None:
    batch = await piped.submit(piped.stage("summarize"), [{"text": "good"}, {"txt": "bad"}])
    progress = await batch.wait()
    assert (progress.completed, progress.failed) == (2, 1)
    results = [result async for result in batch.results()]
    assert results[0].ok
    error = results[1].error
    assert error is not None
    assert error.code == "invalid_item"
    assert error.message == "prompt uses 'text', which is not a column; found txt"
    assert (results[1].attempts, upstream.count("bad")) == (1, 0)


async def test_an_item_that_is_no_object_is_refused_at_submission(piped: Batchline) -> None:
    rows: list[Any] = ["a text"]
    with pytest.raises(InvalidItem):
        await piped.submit(piped.stage("summarize"), rows)


async def test_refusals_of_the_upstream_are_retried_and_emit_once(database_url: str, tmp_path: Path) -> None:
    busy = answers(429, b'{"error":{"message":"slow down"}}', b"retry-after: 0")
    broken = answers(500, b'{"error":{"message":"oh no"}}')
    async with upstream_that(busy, broken, answers_well) as upstream:
        config = stage_file(tmp_path, upstream.url, SUMMARIZE, TRANSLATE)
        async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
            batch = await app.submit(app.stage("summarize"), [{"text": "a"}])
            progress = await batch.wait()
            assert {name: stage.total for name, stage in progress.stages.items()} == {
                "summarize": 1,
                "translate": 1,
            }
            (result,) = [result async for result in batch.results()]
            assert (result.ok, result.attempts) == (True, 3)
    assert len(upstream.requests) == 4


async def test_a_refusal_for_good_is_the_error_of_the_item(
    piped: Batchline, upstream: WordedUpstream
) -> None:
    upstream.refuse("Translate", 400, "no German today")
    batch = await piped.submit(piped.stage("summarize"), [{"text": "a"}])
    progress = await batch.wait()
    assert (progress.completed, progress.failed) == (1, 1)
    (result,) = [result async for result in batch.results(stage=piped.stage("translate"))]
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("http_400", "no German today")


async def test_a_retry_of_the_batch_sends_only_what_failed(
    piped: Batchline, upstream: WordedUpstream
) -> None:
    upstream.refuse("Translate", 400, "no German today")
    batch = await piped.submit(piped.stage("summarize"), [{"text": "a"}])
    await batch.wait()
    upstream.forget()
    await batch.retry()
    assert (await batch.wait()).completed == 2
    assert (upstream.count('"Summarize: a"'), upstream.count("Translate")) == (1, 2)


async def test_attempts_of_a_stage_are_its_own(database_url: str, tmp_path: Path) -> None:
    async with upstream_that(answers(500, b"{}")) as upstream:
        config = stage_file(tmp_path, upstream.url, f"{TRANSLATE}\nmax_attempts = 2")
        async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
            batch = await app.submit(app.stage("translate"), [{"summary": "a"}])
            await batch.wait()
            (result,) = [result async for result in batch.results()]
            assert result.error is not None
            assert (result.error.code, result.attempts) == ("http_500", 2)
    assert len(upstream.requests) == 2


async def test_tokens_count_for_the_batch(piped: Batchline) -> None:
    batch = await piped.submit(piped.stage("summarize"), [{"text": "a"}, {"text": "b"}])
    await batch.wait()
    found = await read_batch(piped._core, batch.uuid)
    assert (found.input_tokens, found.output_tokens) == (4 * 12, 4 * 34)


async def test_results_that_are_not_kept_still_reach_the_next_stage(
    database_url: str, tmp_path: Path, upstream: WordedUpstream
) -> None:
    config = stage_file(tmp_path, upstream.url, f"{SUMMARIZE}\nkeep_results = false", TRANSLATE)
    async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
        batch = await app.submit(app.stage("summarize"), [{"text": "a"}])
        await batch.wait()
        ((first,), (second,)) = await values(batch), await values(batch, app.stage("translate"))
    assert first is None
    assert second["summary"] == "You said: Summarize: a"


async def test_stages_and_functions_share_one_set_of_names(piped: Batchline) -> None:
    async def summarize(item: int) -> int:
        return item

    with pytest.raises(InvalidApp, match=r"two operations 'summarize': .*batchline.toml, line 6 and "):
        piped.operation(summarize)
    assert list(piped.operations) == ["summarize", "translate"]


async def test_a_stage_that_the_app_does_not_have_is_refused(
    database_url: str, tmp_path: Path, upstream: WordedUpstream
) -> None:
    config = stage_file(tmp_path, upstream.url, SUMMARIZE)
    async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
        with pytest.raises(InvalidApp, match="has no stage 'translate'; it has summarize"):
            app.stage("translate")
        with pytest.raises(InvalidApp, match=r"line 9: operation 'summarize' emits 'translate', which is no"):
            await app.submit(app.stage("summarize"), [{"text": "a"}])
        with pytest.raises(InvalidApp, match="cannot be governed"):
            app.governed(app.stage("summarize"))
    async with Batchline(database_url, data_dir=tmp_path / "data") as plain:
        with pytest.raises(InvalidApp, match=r'Batchline\(config="batchline.toml"\)'):
            plain.stage("summarize")


async def test_a_worker_needs_the_keys_of_its_stages(
    database_url: str, tmp_path: Path, upstream: WordedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIM_KEY", raising=False)
    config = stage_file(tmp_path, upstream.url, TRANSLATE, upstream='api_key_env = "SIM_KEY"')
    async with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
        # It may submit without the key.
        batch = await app.submit(app.stage("translate"), [{"summary": "a"}])
        with pytest.raises(InvalidApp, match="stage 'translate': set the environment variable SIM_KEY"):
            await app.worker(drain=True).serve()
        monkeypatch.setenv("SIM_KEY", "secret")
        await app.worker(drain=True).serve()
        assert (await batch.status()).completed == 1
