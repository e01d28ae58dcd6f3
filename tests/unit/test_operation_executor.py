"""The executor for operations: what an item becomes, and what an answer means for it."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from batchline.executors.http import HttpExecutor
from batchline.executors.operation import OperationExecutor, contains
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.governance.templates import RequestTemplate
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retried, TimedOut
from batchline.secrets.masking import MASK
from batchline.upstreams.http_upstream import HttpSettings, Upstreams
from tests.support.http_executor import an_item, line_of
from tests.support.operation_executor import (
    ITEM,
    KEY,
    MAKE,
    Elsewhere,
    an_order,
    code_of,
    failure,
    outcome,
    running,
    said,
)
from tests.support.scripted_upstream import answers, hangs, says, upstream_that

# --- The request -------------------------------------------------------------------------------------------


def test_an_item_becomes_the_request_that_its_operation_says() -> None:
    verdict, (request,) = outcome(said(201, {"ok": True}))
    assert isinstance(verdict, Completed)
    assert verdict.status_code == 201
    assert (request.method, request.path) == ("PUT", "/prefix/things/vm%201")
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.headers["x-size"] == "3"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["idempotency-key"].endswith("-1-1")
    assert json.loads(request.body) == {"spec": {"size": 3}, "secret": "hunter2!"}


def test_a_query_is_sent_where_the_item_has_one() -> None:
    _, (request,) = outcome(said(200, {}), item={**ITEM, "force": "a&b=c"})
    assert request.path == "/prefix/things/vm%201?force=a%26b%3Dc"


def test_an_answer_without_a_body_is_an_answer() -> None:
    verdict, _ = outcome(said(202))
    assert isinstance(verdict, Completed)
    assert line_of(verdict)["response"] == {
        "status_code": 202,
        "request_id": an_order().idempotency_key,
        "body": None,
    }


def test_an_item_that_would_leave_its_path_is_not_sent() -> None:
    for name in ("..", "a/b", ""):
        verdict, requests = outcome(said(200, {}), item={**ITEM, "name": name})
        assert code_of(verdict) == "invalid_item"
        assert requests == []


def test_what_is_no_object_fails_alone() -> None:
    assert code_of(failure(said(200), item=b"[1]")) == "invalid_item"
    assert code_of(failure(said(200), item=b"{")) == "invalid_item"


# --- What answers mean -------------------------------------------------------------------------------------


def test_a_status_that_the_operation_calls_done_completes_the_item() -> None:
    verdict, _ = outcome(said(404, {"reason": "NotFound"}))
    assert isinstance(verdict, Completed)
    assert verdict.status_code == 404


def test_a_conflict_is_tried_again_until_the_attempts_are_used_up() -> None:
    conflict = said(409, {"reason": "Conflict", "message": "modified"}, b"Retry-After: 7")
    verdict, _ = outcome(conflict)
    assert isinstance(verdict, Retried)
    assert (verdict.error_code, verdict.message) == ("http_409", "modified")
    assert verdict.delay >= 7
    last = failure(conflict, attempt=3)
    assert last.status_code == 409
    assert line_of(last)["response"]["body"]["message"] == "modified"


def test_a_success_status_that_the_operation_calls_unfinished_is_retried() -> None:
    verdict, _ = outcome(said(202, {"phase": "Pending"}))
    assert isinstance(verdict, Retried)


def test_what_the_operation_does_not_mention_is_judged_as_usual() -> None:
    assert isinstance(outcome(said(503))[0], Retried)
    assert isinstance(outcome(said(429))[0], Retried)
    assert failure(said(422, {"message": "no"})).status_code == 422
    assert failure(said(302)).status_code == 302
    assert failure(said(409, {"reason": "Other"})).status_code == 409


def test_the_attempts_are_those_of_the_operation() -> None:
    assert isinstance(outcome(said(500), attempt=2)[0], Retried)
    assert isinstance(outcome(said(500), attempt=3)[0], Failed)


ALREADY = {"reason": "AlreadyExists", "message": "already exists"}


def test_an_object_that_exists_as_requested_counts_as_done() -> None:
    existing = {"spec": {"size": 3, "default": 1}, "secret": "hunter2!", "metadata": {}}
    verdict, requests = outcome(said(409, ALREADY), said(200, existing))
    assert isinstance(verdict, Completed)
    assert [(request.method, request.path) for request in requests][1] == ("GET", "/prefix/things/vm%201/now")


def test_an_object_that_exists_otherwise_is_a_failure_with_the_upstreams_error() -> None:
    verdict = failure(said(409, ALREADY), said(200, {"spec": {"size": 4}, "secret": "hunter2!"}))
    assert verdict.status_code == 409
    assert line_of(verdict)["response"]["body"]["message"] == "already exists"


def test_a_conflict_with_an_object_that_is_being_deleted_is_retried() -> None:
    assert isinstance(outcome(said(409, ALREADY), said(200, {"deleted": "now", "spec": {}}))[0], Retried)
    assert isinstance(outcome(said(409, ALREADY), said(404))[0], Retried)
    assert isinstance(outcome(said(409, ALREADY), said(500))[0], Retried)


def test_an_object_with_additional_fields_still_matches() -> None:
    assert contains({"a": {"b": 1, "c": 2}, "l": [{"x": 1, "y": 2}]}, {"a": {"b": 1}, "l": [{"x": 1}]})
    assert not contains({"l": [1, 2]}, {"l": [1]})
    assert not contains({"a": 1}, {"a": True})
    assert not contains("text", {})


# --- What cannot be run ------------------------------------------------------------------------------------


def test_an_unknown_operation_fails_the_item_with_a_code() -> None:
    assert code_of(failure(said(200), name="unheard_of")) == "unknown_operation"


async def test_a_worker_without_operations_leaves_them_to_others() -> None:
    executor = OperationExecutor(Registry(), (), HttpExecutor(Upstreams(environ={})), Elsewhere())
    verdict = await executor.run(an_order())
    assert isinstance(verdict, Deferred)
    assert verdict.delay > 0


async def test_what_is_no_operation_goes_elsewhere_untouched() -> None:
    elsewhere = Elsewhere()
    executor = OperationExecutor(Registry([MAKE]), (), HttpExecutor(Upstreams(environ={})), elsewhere)
    item = an_item(None)
    await executor.run(item)
    executor.fenced_by(lambda: True)
    executor.wind_down()
    await executor.close()
    assert elsewhere.items == [item]
    assert elsewhere.calls == ["fenced_by", "wind_down", "close"]


async def test_an_operation_of_another_kind_goes_to_its_handler() -> None:
    operation = Operation("greet", None, executor="greeter")
    greeted: list[Any] = []

    async def greet(operation: Operation, item: Item) -> Ran:
        greeted.append((operation.name, json.loads(item.body)))
        return Completed(item, 200, b"{}")

    async def run(handlers: dict[str, Any]) -> Ran:
        http = HttpExecutor(Upstreams(environ={}))
        executor = OperationExecutor(Registry([operation]), (), http, Elsewhere(), handlers)
        return await executor.run(an_order(name="greet"))

    assert isinstance(await run({"greeter": greet}), Completed)
    assert greeted == [("greet", ITEM)]
    assert isinstance(await run({}), Deferred)


async def test_one_items_surprise_is_a_verdict_on_it_alone() -> None:
    def surprising(item: Any) -> Any:
        raise RuntimeError("surprise")

    operation = Operation("odd", RequestTemplate("cluster", "/x", body=surprising))
    async with upstream_that(said(200, {})) as upstream:

        async def test(executor: OperationExecutor) -> Sequence[Ran]:
            return await asyncio.gather(
                executor.run(an_order(name="odd")), executor.run(an_order(name="make"))
            )

        verdicts: Sequence[Ran] = await running(upstream, test, operation, MAKE)
        odd, good = verdicts
    assert code_of(odd) == "internal_error"
    assert isinstance(good, Completed)


async def test_a_request_of_an_operation_that_hangs_times_out() -> None:
    quick = Operation("make", RequestTemplate("cluster", "/x"), timeout=0.2)
    async with upstream_that(hangs) as upstream:
        ran = await running(upstream, lambda executor: executor.run(an_order()), quick)
    assert isinstance(ran, TimedOut)
    assert ran.error_code == "timeout"


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"409 Conflict", b"500 Oops"])
def test_an_answer_that_is_too_large_fails_its_item_whatever_it_means(status: bytes, attempt: int) -> None:
    # It never ends: a verdict proves that nobody waited for the end.
    endless = b"HTTP/1.1 %b\r\nContent-Length: 2000000\r\n\r\n%b" % (status, b'"' + b"x" * 1_000_000)
    verdict = failure(says(endless), attempt=attempt, http_settings=HttpSettings(max_body=1000))
    assert code_of(verdict) == "response_too_large"
    assert len(verdict.output) < 1000, "nothing of the answer is kept"


def test_a_too_large_answer_about_an_existing_object_fails_the_item() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n%b" % (b'"' + b"x" * 1_000_000)
    exists = said(409, {"reason": "AlreadyExists"})
    verdict = failure(exists, says(endless), http_settings=HttpSettings(max_body=1000))
    assert code_of(verdict) == "response_too_large"


def test_an_answer_of_just_the_limit_is_taken() -> None:
    body = b'"%b"' % (b"x" * 998)
    within, _ = outcome(answers(200, body), http_settings=HttpSettings(max_body=1000))
    assert isinstance(within, Completed)
    assert (
        code_of(failure(answers(200, body), http_settings=HttpSettings(max_body=999))) == "response_too_large"
    )


# --- Secrets -----------------------------------------------------------------------------------------------


def test_no_secret_of_an_item_is_in_a_verdict_whatever_the_upstream_quotes() -> None:
    quoted = {
        "message": 'Invalid value: "hunter2!"',
        "object": {"password": "other"},
        "note": "Bearer abcdefgh",
    }
    for status in (200, 422):
        verdict, _ = outcome(said(status, quoted))
        body = line_of(verdict)["response"]["body"]
        assert body == {
            "message": f'Invalid value: "{MASK}"',
            "object": {"password": MASK},
            "note": f"Bearer {MASK}",
        }
    retried, _ = outcome(said(503, quoted))
    assert isinstance(retried, Retried)
    assert retried.message == f'Invalid value: "{MASK}"'


def test_an_answer_too_deep_to_be_searched_is_not_shown_and_still_counts() -> None:
    deep = b'{"a":' * 400 + b'"hunter2!"' + b"}" * 400
    verdict, _ = outcome(answers(200, deep))
    assert isinstance(verdict, Completed)
    assert b"hunter2" not in verdict.output


def test_the_clusters_key_is_in_no_verdict() -> None:
    verdict, _ = outcome(said(401, {"message": f"bad token {KEY}"}))
    assert isinstance(verdict, Failed)
    assert KEY not in verdict.output.decode()
