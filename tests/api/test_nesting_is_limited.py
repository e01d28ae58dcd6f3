"""What is nested too deep is refused when it arrives; what is taken is good for all that comes after."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.governance.templates import InvalidValue, RequestTemplate
from batchline.model import Completed
from batchline.model.json_limits import MAX_DEPTH, WRAPPED, is_too_deep
from batchline.store import batches, spans
from batchline.store.session import Session
from tests.support.builders import a_worker, on, take
from tests.support.governance import end_all
from tests.support.http_executor import line_of
from tests.support.operation_executor import outcome
from tests.support.operations_client import SETTINGS
from tests.support.parsing import read
from tests.support.scenes import database
from tests.support.scripted_upstream import answers
from tests.support.serving import Server, serving

CHAT: Final = "/v1/chat/completions"
NESTED = Operation(
    "nested",
    request=None,
    executor="none",
    schema={"type": "object", "properties": {"a": {"$ref": "#"}}},
)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, Registry([NESTED])) as running,
    ):
        yield running


def deep(levels: int) -> dict[str, Any]:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return dict(value)


@pytest.mark.parametrize("levels", [1, 2, MAX_DEPTH, MAX_DEPTH + 1, 300])
def test_levels_are_counted(levels: int) -> None:
    as_lists = b"[" * levels + b"]" * levels
    mixed = b'[{"a":' * (levels // 2) + b"[]" * (levels % 2) + b"1" * (1 - levels % 2) + b"}]" * (levels // 2)
    for text in (json.dumps(deep(levels)).encode(), as_lists, mixed):
        assert is_too_deep(text) == (levels > MAX_DEPTH)


def test_brackets_in_texts_and_side_by_side_are_no_levels() -> None:
    assert not is_too_deep(json.dumps({"a": "[" * 1000, 'b"\\': "\\" * 3 + '"[{' * 500}).encode())
    assert not is_too_deep(json.dumps([[] for _ in range(1000)]).encode())


def test_an_item_at_the_limit_is_accepted_and_run(server: Server) -> None:
    item = deep(MAX_DEPTH)
    with server.http(server.key(name="anna")) as http:
        answer = http.post("/api/v1/operations/nested/batches", json={"items": [item]})
        assert answer.status_code == 202, answer.text
        url = answer.json()["status_url"]

        async def answer_with_as_much(db: Session) -> None:
            worker = a_worker()
            (taken,) = await take(db, worker, 10)
            line = b'{"response":{"status_code":200,"body":%b},"error":null}' % json.dumps(item).encode()
            for settled in await spans.settle(db, worker.id, [Completed(taken, 200, line)]):
                if settled.closing:
                    await batches.conclude(db, settled.batch_id)
            await end_all(db)

        on(server.database, answer_with_as_much)
        (child,) = http.get(url).json()["children"]
        assert (child["status"], child["result"]) == ("SUCCEEDED", item)


def test_a_result_from_before_there_was_a_limit_is_no_error(server: Server) -> None:
    with server.http(server.key(name="bert")) as http:
        url = http.post("/api/v1/operations/nested/batches", json={"items": [{}]}).json()["status_url"]

        async def answer_too_deep(db: Session) -> None:
            worker = a_worker()
            (taken,) = await take(db, worker, 10)
            line = b'{"response":{"status_code":200,"body":%b},"error":null}' % json.dumps(deep(300)).encode()
            await spans.settle(db, worker.id, [Completed(taken, 200, line)])

        on(server.database, answer_too_deep)
        answer = http.get(url)
        assert answer.status_code == 200
        assert "nested more than 200 levels" in answer.json()["children"][0]["result"]


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 250, 300, 900, 100_000])
def test_a_deeper_item_is_refused_however_it_comes(server: Server, levels: int) -> None:
    body = b'{"items": [%b]}' % (b'{"a":' * levels + b"1" + b"}" * levels)
    headers = {"content-type": "application/json"}
    with server.http(server.key(name="carla")) as http:
        held = http.post("/api/v1/operations/nested/batches", json={"items": [{}], "hold": True}).json()
        for path in ("/api/v1/operations/nested/batches", f"/api/v1/batches/{held['batch_id']}/append"):
            answer = http.post(path, content=body, headers=headers)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["message"] == "The body is nested more than 202 levels deep."
            assert error["code"] == "INVALID_BATCH_REQUEST"
        assert http.get(held["status_url"]).status_code == 200


def test_metadata_and_other_bodies_are_refused_as_well(server: Server) -> None:
    with server.http(server.key()) as http:
        for path in ("/v1/batches", "/v1/uploads", "/v1/webhook_endpoints", "/api/v1/batches/x/approve"):
            answer = http.post(path, json={"metadata": deep(300)})
            assert answer.status_code == 400, answer.text
            assert "nested more than" in answer.json()["error"]["message"]


def test_a_line_is_an_error_of_its_file(server: Server) -> None:
    def line(levels: int) -> bytes:
        body = {"model": "m", "x": deep(levels - 2)}
        return json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"

    assert read(line(MAX_DEPTH + WRAPPED))[0].errors() == ()
    (error,) = read(line(MAX_DEPTH + WRAPPED + 1))[0].errors()
    assert (error.code, error.message) == ("invalid_json_line", "nested more than 202 levels deep")
    client = server.client()
    assert client.files.create(file=("a.jsonl", line(MAX_DEPTH)), purpose="batch").status == "processed"
    refused = client.files.create(file=("a.jsonl", line(300)), purpose="batch")
    assert (refused.status, refused.status_details) == ("error", "line 1: nested more than 202 levels deep")
    upload = client.uploads.create(bytes=len(line(300)), filename="x", mime_type="a/b", purpose="batch")
    part = client.uploads.parts.create(upload.id, data=line(300))
    completed = client.uploads.complete(upload.id, part_ids=[part.id])
    assert completed.file is not None
    assert completed.file.status == "error"


def test_an_item_fails_if_its_template_makes_the_request_too_deep() -> None:
    template = RequestTemplate("u", "/x", body={"spec": {"a": "{a}"}})
    assert template.render({"a": deep(MAX_DEPTH - 2)}).body
    with pytest.raises(InvalidValue, match="nested more than 200 levels deep"):
        template.render({"a": deep(MAX_DEPTH - 1)})
    operation = Operation("x", template)
    (fault,) = operation.faults([{"a": deep(MAX_DEPTH - 1)}])
    assert fault.position == "items[0]"


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1, 300, 5000])
def test_an_answer_that_is_too_deep_counts_and_is_not_displayed(levels: int) -> None:
    body = b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)
    verdict, _ = outcome(answers(200, body))
    assert isinstance(verdict, Completed)
    displayed = line_of(verdict)["response"]["body"]
    assert isinstance(displayed, str) == (levels > MAX_DEPTH)
