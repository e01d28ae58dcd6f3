"""The simulated provider: background responses with durable tasks, lost answers, vanished tasks, a ledger."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batchline.simulate import SimulateSettings, Simulator, answer_to
from tests.support.simulated_client import Answer, Upstream, request

RESPONSES = "/v1/responses"
LONG = 3_600_000.0


@asynccontextmanager
async def simulating(**settings: Any) -> AsyncIterator[Upstream]:
    simulator = Simulator(SimulateSettings(**settings))
    upstream = Upstream(*await simulator.start())
    try:
        yield upstream
    finally:
        await upstream.close_clients()
        await simulator.stop()


def background(text: str = "hi", **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": text, "background": True, **more}).encode()


async def submit(upstream: Upstream, text: str = "hi", key: str | None = None, **more: Any) -> Answer:
    return await upstream.post(background(text, **more), key=key, path=RESPONSES)


async def test_a_task_runs_then_has_the_answer_of_the_same_request() -> None:
    async with simulating(task_ms=200) as upstream:
        accepted = (await submit(upstream)).json
        assert (accepted["status"], accepted["output"]) == ("in_progress", [])
        displayed = accepted
        while displayed["status"] != "completed":
            displayed = (await upstream.get(f"{RESPONSES}/{accepted['id']}")).json
        assert displayed["id"] == accepted["id"]
        assert displayed["output"] == json.loads(answer_to(RESPONSES, background()))["output"]


async def test_a_request_without_background_is_answered_at_once() -> None:
    async with simulating() as upstream:
        answer = await upstream.post(b'{"model":"m","input":"hi","background":false}', path=RESPONSES)
        assert answer.json["status"] == "completed"
        assert (await upstream.stats())["tasks"]["accepted"] == 0


async def test_a_key_makes_one_task_also_while_the_first_is_being_accepted() -> None:
    async with simulating(accept_ms=100) as upstream:
        first, second = await upstream.connect(), await upstream.connect()
        for client in (first, second):
            client.send(request(background(), key="k", path=RESPONSES))
        answers = [(await client.answer()).json["id"] for client in (first, second)]
        again = (await submit(upstream, key="k")).json["id"]
        assert {*answers, again} == {again}
        tasks = (await upstream.stats())["tasks"]
        assert (tasks["accepted"], tasks["replays"]) == (1, 2)


async def test_a_keyless_provider_makes_a_second_task_and_its_ledger_says_so() -> None:
    async with simulating(keyless=True) as upstream:
        ids = {(await submit(upstream, key="k")).json["id"] for _ in range(2)}
        assert len(ids) == 2
        assert (await upstream.stats())["tasks"]["keys_with_two_tasks"] == 1


async def test_a_submission_is_accepted_though_the_caller_has_left() -> None:
    async with simulating(accept_ms=100) as upstream:
        client = await upstream.connect()
        client.send(request(background(), key="k", path=RESPONSES))
        await upstream.until(lambda stats: stats["tasks"]["submissions"] == 1)
        await client.close()
        await upstream.until(lambda stats: stats["tasks"]["accepted"] == 1)


async def test_a_lost_answer_leaves_a_task_that_can_be_searched_by_metadata() -> None:
    async with simulating(lose_rate=1.0) as upstream:
        client = await upstream.connect()
        client.send(request(background(metadata={"batchline_key": "k-1"}), key="k-1", path=RESPONSES))
        assert await client.closed_by_server()
        page = (await upstream.get(f"{RESPONSES}?metadata%5Bbatchline_key%5D=k-1")).json
        (task,) = page["data"]
        assert task["metadata"] == {"batchline_key": "k-1"}
        assert (await upstream.get(f"{RESPONSES}?metadata%5Bbatchline_key%5D=k-2")).json["data"] == []


async def test_a_vanished_task_is_in_the_ledger_and_nowhere_else() -> None:
    async with simulating(vanish_rate=1.0) as upstream:
        task = (await submit(upstream)).json["id"]
        assert (await upstream.get(f"{RESPONSES}/{task}")).status == 404
        (entry,) = [json.loads(line) for line in (await upstream.get("/tasks")).body.splitlines()]
        assert (entry["id"], entry["vanishes"]) == (task, True)


async def test_submissions_and_polls_are_rate_limited() -> None:
    async with simulating(rate_limit=0.001) as upstream:
        task = (await submit(upstream)).json["id"]
        assert (await submit(upstream, "other")).status == 429
        refused = await upstream.get(f"{RESPONSES}/{task}")
        assert (refused.status, float(refused.headers["retry-after"]) > 0) == (429, True)
        assert (await upstream.stats())["tasks"]["refused"] == 2


async def test_a_running_task_can_be_cancelled() -> None:
    async with simulating(task_ms=LONG) as upstream:
        task = (await submit(upstream)).json["id"]
        cancelled = await upstream.get(f"{RESPONSES}/{task}/cancel", method="POST")
        assert cancelled.json["status"] == "cancelled"
        assert (await upstream.get(f"{RESPONSES}/{task}")).json["status"] == "cancelled"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_tasks_survive_the_process_in_a_file(tmp_path: Path, cancelled: bool) -> None:
    kept = {"tasks_file": str(tmp_path / "tasks.jsonl"), "task_ms": LONG}
    async with simulating(**kept) as upstream:
        task = (await submit(upstream, key="k")).json["id"]
        if cancelled:
            await upstream.get(f"{RESPONSES}/{task}/cancel", method="POST")
    async with simulating(**kept) as upstream:
        displayed = (await upstream.get(f"{RESPONSES}/{task}")).json
        assert displayed["status"] == ("cancelled" if cancelled else "in_progress")
        assert (await submit(upstream, key="k")).json["id"] == task
        assert (await upstream.stats())["tasks"]["accepted"] == 1


async def test_a_body_that_could_not_be_answered_is_refused() -> None:
    async with simulating() as upstream:
        answer = await upstream.post(b'{"input":"hi","background":true}', path=RESPONSES)
        assert (answer.status, answer.json["error"]["param"]) == (400, "model")
