"""The provider executor: what it sends, and its verdict on whatever the provider does."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from batchline.executors.provider import ProviderExecutor
from batchline.model import (
    Completed,
    Deferred,
    Failed,
    Item,
    ProviderSettings,
    Ran,
    Recovery,
    Retried,
    SubmissionUnknown,
    TaskParked,
)
from tests.support.http_executor import an_executor, an_item, line_of
from tests.support.scripted_upstream import (
    CUT_SHORT,
    Behaviour,
    Upstream,
    an_upstream_that_refuses,
    answers,
    answers_well,
    hangs,
    says_and_closes,
    upstream_that,
)

BODY = b'{"model": "m", "input": "hi", "metadata": {"mine": "1"}, "stream": false}'
NAME = "openai-background"


def response(status: str, **more: Any) -> bytes:
    displayed = {"id": "resp_1", "object": "response", "created_at": 1000, "status": status, **more}
    return json.dumps(displayed).encode()


def an_item_for(
    upstream: str,
    recovery: Recovery = Recovery.HOLD,
    *,
    task_id: str | None = None,
    submission: str | None = None,
    body: bytes = BODY,
    **options: Any,
) -> Item:
    item = an_item(upstream, **{"url": "/v1/responses", **options})
    settings = replace(item.claim.settings, provider=ProviderSettings(NAME, recovery, recheck=60.0))
    claim = replace(item.claim, settings=settings, task_id=task_id, submission=submission)
    return replace(item, claim=claim, body=body)


@asynccontextmanager
async def a_provider_executor(**timing: Any) -> AsyncIterator[ProviderExecutor]:
    async with an_executor(**timing) as http:
        yield ProviderExecutor(http)


async def verdict_on(
    *behaviours: Behaviour, recovery: Recovery = Recovery.HOLD, **options: Any
) -> tuple[Ran, Upstream]:
    async with upstream_that(*behaviours) as upstream, a_provider_executor() as executor:
        return await executor.run(an_item_for(upstream.url, recovery, **options)), upstream


def delay_of(verdict: Ran) -> float:
    assert isinstance(verdict, TaskParked | SubmissionUnknown | Retried | Deferred)
    return verdict.delay


# Submitting


async def test_an_item_is_submitted_in_the_background_under_its_key() -> None:
    verdict, upstream = await verdict_on(answers(200, response("queued")))
    assert isinstance(verdict, TaskParked)
    assert verdict.task_id == "resp_1"
    (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/responses")
    key = verdict.item.idempotency_key
    assert request.headers["idempotency-key"] == key
    assert json.loads(request.body) == {
        "model": "m",
        "input": "hi",
        "background": True,
        "metadata": {"mine": "1", "batchline_key": key},
    }


async def test_an_item_whose_metadata_is_full_is_submitted_with_it_unchanged() -> None:
    full = {f"k{n}": "v" for n in range(16)}
    body = json.dumps({"model": "m", "metadata": full}).encode()
    _, upstream = await verdict_on(answers(200, response("queued")), body=body)
    assert json.loads(upstream.requests[0].body)["metadata"] == full


async def test_a_task_that_is_done_at_once_is_parked_all_the_same() -> None:
    verdict, _ = await verdict_on(answers(200, response("completed")))
    assert isinstance(verdict, TaskParked), "its id is committed before anything else"


@pytest.mark.parametrize(
    "behaviour",
    [
        says_and_closes(b""),
        says_and_closes(CUT_SHORT),
        answers(500),
        answers(502, b"<html>"),
        answers(504),
        answers(408),
        answers(409),
        answers(200, b"not JSON"),
        answers(200, b"{}"),
    ],
    ids=[
        "closed",
        "cut short",
        "500",
        "502",
        "504",
        "408",
        "409",
        "not JSON",
        "no id",
    ],
)
@pytest.mark.parametrize("recovery", list(Recovery))
async def test_a_submission_without_a_clear_answer_is_unknown(
    behaviour: Behaviour, recovery: Recovery
) -> None:
    verdict, upstream = await verdict_on(behaviour, recovery=recovery)
    assert isinstance(verdict, SubmissionUnknown)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("recovery", list(Recovery))
async def test_an_item_whose_task_id_cannot_be_stored_fails_instead_of_being_submitted_for_ever(
    recovery: Recovery,
) -> None:
    verdict, upstream = await verdict_on(answers(200, b'{"id": "a/../b"}'), recovery=recovery)
    assert isinstance(verdict, Failed)
    assert b'"invalid_task_id"' in verdict.output
    assert len(upstream.requests) == 1


async def test_a_submission_that_times_out_is_unknown() -> None:
    verdict, _ = await verdict_on(hangs, timeout=0.2)
    assert isinstance(verdict, SubmissionUnknown)


async def test_a_submission_that_never_left_is_none() -> None:
    taken, url = an_upstream_that_refuses()
    with taken:
        async with a_provider_executor() as executor:
            verdict = await executor.run(an_item_for(url))
    assert isinstance(verdict, Deferred)


async def test_a_rate_limit_is_another_attempt() -> None:
    verdict, _ = await verdict_on(answers(429, b"{}", b"Retry-After: 7"))
    assert isinstance(verdict, Retried)
    assert (verdict.error_code, verdict.delay >= 7) == ("http_429", True)
    last, _ = await verdict_on(answers(429, b"{}"), attempt=3)
    assert isinstance(last, Failed)


async def test_a_refusal_fails_the_item_with_the_providers_answer() -> None:
    verdict, _ = await verdict_on(answers(400, b'{"error": {"message": "no"}}'))
    assert isinstance(verdict, Failed)
    assert line_of(verdict)["response"]["body"] == {"error": {"message": "no"}}


@pytest.mark.parametrize(
    ("options", "code"),
    [({"url": "/v1/chat/completions"}, "invalid_url"), ({"body": b"[1]"}, "invalid_body")],
    ids=["another url", "no object"],
)
async def test_an_item_that_is_no_response_fails_unsent(options: dict[str, Any], code: str) -> None:
    verdict, upstream = await verdict_on(answers_well, **options)
    assert line_of(verdict)["error"]["code"] == code
    assert upstream.requests == []


# Recovering


@pytest.mark.parametrize("submission", ["interrupted", "unknown"])
async def test_without_a_way_to_ask_an_item_is_held(submission: str) -> None:
    verdict, upstream = await verdict_on(answers(200, response("queued")), submission=submission)
    assert isinstance(verdict, SubmissionUnknown)
    assert upstream.requests == []
    assert delay_of(verdict) >= 60, "a worker that drains does not wait for it"


@pytest.mark.parametrize("recovery", [Recovery.KEY, Recovery.RESUBMIT])
async def test_a_provider_that_keeps_keys_is_sent_the_same_key_again(recovery: Recovery) -> None:
    verdict, upstream = await verdict_on(
        answers(200, response("in_progress")), recovery=recovery, submission="interrupted"
    )
    assert isinstance(verdict, TaskParked)
    assert upstream.requests[0].headers["idempotency-key"] == verdict.item.idempotency_key


@pytest.mark.parametrize("submission", ["interrupted", "unknown"])
async def test_a_rate_limit_does_not_give_up_a_key_that_may_have_a_task(submission: str) -> None:
    """Another attempt would have another key, and so make a second task."""
    verdict, _ = await verdict_on(
        answers(429, b"{}", b"Retry-After: 9"), recovery=Recovery.KEY, submission=submission
    )
    assert isinstance(verdict, SubmissionUnknown)
    assert delay_of(verdict) == 9


def listed(key: str) -> bytes:
    tasks = [
        {"id": "resp_other", "metadata": {"batchline_key": "x"}},
        {"id": "resp_7", "metadata": {"batchline_key": key}},
    ]
    return json.dumps({"object": "list", "data": tasks}).encode()


async def test_a_provider_that_can_be_searched_is_searched_before_anything_is_submitted() -> None:
    key = an_item("http://x").idempotency_key
    verdict, upstream = await verdict_on(
        answers(200, listed(key)), recovery=Recovery.METADATA, submission="interrupted"
    )
    assert isinstance(verdict, TaskParked)
    assert (verdict.task_id, verdict.delay) == ("resp_7", 0.0)
    (request,) = upstream.requests
    assert (request.method, request.path) == ("GET", f"/v1/responses?metadata%5Bbatchline_key%5D={key}")


async def test_a_task_that_is_not_found_at_first_is_looked_for_once_more() -> None:
    """The lost worker's submission may still be on its way."""
    none = answers(200, b'{"object": "list", "data": []}')
    verdict, upstream = await verdict_on(none, recovery=Recovery.METADATA, submission="interrupted")
    assert isinstance(verdict, SubmissionUnknown)
    assert delay_of(verdict) == 60
    assert len(upstream.requests) == 1
    again, upstream = await verdict_on(
        none, answers(200, response("queued")), recovery=Recovery.METADATA, submission="unknown"
    )
    assert isinstance(again, TaskParked)
    assert [request.method for request in upstream.requests] == ["GET", "POST"]


@pytest.mark.parametrize(
    "behaviour",
    [answers(500), answers(404), answers(429), answers(200, response("queued")), says_and_closes(b"")],
    ids=["500", "404", "429", "no list", "closed"],
)
async def test_a_search_without_an_answer_submits_nothing(behaviour: Behaviour) -> None:
    verdict, upstream = await verdict_on(behaviour, recovery=Recovery.METADATA, submission="unknown")
    assert isinstance(verdict, SubmissionUnknown)
    assert [request.method for request in upstream.requests] == ["GET"]


@pytest.mark.parametrize(
    "found",
    [
        {"id": "resp_other", "metadata": {"batchline_key": "x"}},
        {"id": "a/../b", "metadata": {"batchline_key": an_item("http://x").idempotency_key}},
    ],
    ids=["a server that ignores the search", "an id that cannot be stored"],
)
async def test_a_search_that_does_not_tell_submits_nothing(found: dict[str, Any]) -> None:
    page = json.dumps({"object": "list", "data": [found]}).encode()
    verdict, upstream = await verdict_on(answers(200, page), recovery=Recovery.METADATA, submission="unknown")
    assert isinstance(verdict, SubmissionUnknown)
    assert [request.method for request in upstream.requests] == ["GET"]


async def test_an_item_without_room_for_its_key_is_held() -> None:
    body = json.dumps({"model": "m", "metadata": {f"k{n}": "v" for n in range(16)}}).encode()
    verdict, upstream = await verdict_on(
        answers(200, response("queued")), recovery=Recovery.METADATA, submission="unknown", body=body
    )
    assert isinstance(verdict, SubmissionUnknown)
    assert upstream.requests == []


# Collecting


async def test_the_result_of_a_task_is_the_items_answer() -> None:
    body = response("completed", usage={"input_tokens": 3, "output_tokens": 4}, output=[])
    verdict, upstream = await verdict_on(answers(200, body), task_id="resp_1")
    assert isinstance(verdict, Completed)
    assert (verdict.usage.input_tokens, verdict.usage.output_tokens) == (3, 4)
    assert line_of(verdict)["response"]["body"] == json.loads(body)
    assert [(each.method, each.path) for each in upstream.requests] == [("GET", "/v1/responses/resp_1")]


async def test_an_incomplete_response_is_an_answer() -> None:
    verdict, _ = await verdict_on(answers(200, response("incomplete")), task_id="resp_1")
    assert isinstance(verdict, Completed)


@pytest.mark.parametrize(
    ("age", "delay"), [(0, 1.0), (10, 5.0), (1000, 30.0), (-500, 1.0)], ids=["new", "older", "old", "skewed"]
)
async def test_a_task_that_has_run_for_long_is_polled_less_often(age: float, delay: float) -> None:
    async with (
        upstream_that(answers(200, response("in_progress"))) as upstream,
        a_provider_executor(now=lambda: 1000.0 + age) as executor,
    ):
        verdict = await executor.run(an_item_for(upstream.url, task_id="resp_1"))
    assert isinstance(verdict, TaskParked)
    assert (verdict.task_id, verdict.delay) == ("resp_1", delay)


@pytest.mark.parametrize(
    "behaviour",
    [
        answers(500),
        answers(429),
        answers(401),
        answers(200, b"?"),
        answers(200, response("odd")),
        says_and_closes(b""),
    ],
    ids=["500", "429", "401", "not JSON", "a status of the future", "closed"],
)
async def test_a_task_that_cannot_be_polled_stays_parked(behaviour: Behaviour) -> None:
    verdict, _ = await verdict_on(behaviour, task_id="resp_1")
    assert isinstance(verdict, TaskParked)
    assert verdict.task_id == "resp_1"
    assert delay_of(verdict) > 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "oops"}, Retried),
        ({"code": "invalid_prompt", "message": "no"}, Failed),
    ],
    ids=["passing", "final"],
)
async def test_a_task_that_failed_is_tried_again_if_that_can_help(error: dict[str, str], kind: type) -> None:
    verdict, _ = await verdict_on(answers(200, response("failed", error=error)), task_id="resp_1")
    assert isinstance(verdict, kind)
    last, _ = await verdict_on(answers(200, response("failed", error=error)), task_id="resp_1", attempt=3)
    assert line_of(last)["error"] == error


async def test_a_cancelled_task_fails_its_item() -> None:
    verdict, _ = await verdict_on(answers(200, response("cancelled")), task_id="resp_1")
    assert line_of(verdict)["error"]["code"] == "task_cancelled"


async def test_a_task_has_vanished_only_if_it_stays_away() -> None:
    """A provider may not know at once what it has just accepted: to submit again would make a second task."""
    at = 0.0

    async with (
        upstream_that(answers(404)) as upstream,
        a_provider_executor(clock=lambda: at) as executor,
    ):
        item = an_item_for(upstream.url, task_id="resp_1")
        for at in (0.0, 30.0, 59.0):
            verdict = await executor.run(item)
            assert isinstance(verdict, TaskParked), f"after {at} s"
        at = 61.0
        verdict = await executor.run(item)
    assert isinstance(verdict, Retried)
    assert verdict.error_code == "task_vanished"


async def test_a_task_that_comes_back_has_not_vanished() -> None:
    at = 0.0
    running = answers(200, response("in_progress"))
    async with (
        upstream_that(answers(404), running, answers(404)) as upstream,
        a_provider_executor(clock=lambda: at) as executor,
    ):
        item = an_item_for(upstream.url, task_id="resp_1")
        for at in (0.0, 30.0, 61.0):
            assert isinstance(await executor.run(item), TaskParked), f"after {at} s"


async def test_two_errors_far_apart_are_no_vanished_task() -> None:
    """Another worker may have seen the task between them."""
    at = 0.0
    async with (
        upstream_that(answers(404)) as upstream,
        a_provider_executor(clock=lambda: at) as executor,
    ):
        item = an_item_for(upstream.url, task_id="resp_1")
        for at in (0.0, 3600.0):
            assert isinstance(await executor.run(item), TaskParked), f"after {at} s"


# Cancelling


@pytest.mark.parametrize(
    ("behaviour", "over"),
    [
        (answers(200, response("cancelled")), True),
        (answers(400), True),
        (answers(404), True),
        (answers(429), False),
        (answers(500), False),
        (says_and_closes(b""), False),
    ],
    ids=["cancelled", "it has ended", "it is gone", "429", "500", "closed"],
)
async def test_a_task_is_cancelled_unless_the_provider_may_do_it_later(
    behaviour: Behaviour, over: bool
) -> None:
    async with upstream_that(behaviour) as upstream, a_provider_executor() as executor:
        assert await executor.cancel(an_item_for(upstream.url, task_id="resp_1")) is over
    assert [(each.method, each.path) for each in upstream.requests] == [
        ("POST", "/v1/responses/resp_1/cancel")
    ]


# Other items


async def test_an_item_of_an_ordinary_upstream_is_posted_as_it_is() -> None:
    async with upstream_that(answers_well) as upstream, a_provider_executor() as executor:
        verdict = await executor.run(an_item(upstream.url))
    assert isinstance(verdict, Completed)


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: replace(settings, provider=None),
        lambda settings: replace(settings, provider=ProviderSettings("of another version")),
    ],
    ids=["no provider any more", "unknown provider"],
)
async def test_a_task_is_not_sent_again_because_the_settings_have_changed(
    change: Callable[[Any], Any],
) -> None:
    async with upstream_that(answers_well) as upstream, a_provider_executor() as executor:
        item = an_item_for(upstream.url, task_id="resp_1")
        item = replace(item, claim=replace(item.claim, settings=change(item.claim.settings)))
        verdict = await executor.run(item)
    assert isinstance(verdict, Deferred)
    assert upstream.requests == []
