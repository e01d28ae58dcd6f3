"""Checking what one user sends takes bounded time, beside the event loop: others are served meanwhile."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from batchline.config import SettingsError, load
from batchline.governance.operations import InvalidOperation, Operation
from batchline.governance.preparation import PreparingPool
from batchline.governance.registry import Registry, registry_of
from batchline.governance.schemas import ItemSchema
from batchline.governance.validator import MAX_SECONDS, ValidationTooLong, Validators
from batchline.model.json_limits import MAX_VALUES, has_too_many_values
from tests.support.event_loops import slowest_callback
from tests.support.operations_client import SETTINGS
from tests.support.raw_http import spoken
from tests.support.scenes import database
from tests.support.serving import Server, serving

# Each of its branches looks at the same child: to say why an item does not fit takes exponential time.
BRANCHING = {
    "type": "object",
    "$defs": {
        "node": {
            "anyOf": [
                {"properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a"], "maxProperties": 1},
                {"properties": {"a": {"$ref": "#/$defs/node"}}, "required": ["a"], "minProperties": 1},
            ]
        }
    },
    "properties": {"a": {"$ref": "#/$defs/node"}},
}


def an_operation(name: str, schema: Any) -> Operation:
    return Operation(name, request=None, executor="none", schema=schema)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


REGISTRY = Registry(
    [
        an_operation("labels", object_of(labels={"additionalProperties": {"type": "string"}})),
        an_operation("unique", object_of(list={"type": "array", "uniqueItems": True})),
        an_operation("pattern", object_of(name={"type": "string", "pattern": "^([a-z0-9]+-?)+$"})),
        an_operation("names", object_of(labels={"propertyNames": {"maxLength": 2}})),
        an_operation("branching", BRANCHING),
    ]
)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


def nested(depth: int) -> dict[str, Any]:
    item: dict[str, Any] = {"z": 1}
    for _ in range(depth):
        item = {"a": item}
    return item


def labels(count: int, value: Any = "value") -> dict[str, Any]:
    return {"labels": {f"label{number:05}": value for number in range(count)}}


ATTACKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "770 KB of labels": ("labels", {"items": [labels(32_000, "a-value")]}, 202),
    "as many that are wrong": ("labels", {"items": [labels(40_000, 1)]}, 400),
    "unique objects": ("unique", {"items": [{"list": [{"k": n, "b": {"c": n}} for n in range(4_000)]}]}, 202),
    "equal objects at the end": (
        "unique",
        {"items": [{"list": [*({"k": n} for n in range(8_000)), {"k": 0}]}]},
        400,
    ),
    "a pattern to backtrack in": ("pattern", {"items": [{"name": "a" * 25 + "!"}]}, 400),
    "a long text for it": ("pattern", {"items": [{"name": "a" * 900_000 + "!"}]}, 400),
    "names that are wrong": ("names", {"items": [labels(40_000)]}, 400),
    "branches without end": ("branching", {"items": [nested(60)]}, 400),
    "unknown parameters": ("labels", {f"p{number}": 1 for number in range(60_000)}, 400),
    "names that are numbers": ("labels", {"items": [{}], "custom_ids": [1] * 90_000}, 400),
    "as many values as fit": ("labels", {"items": [{"x": [[]] * 49_000}]}, 202),
    "more values than that": ("labels", {"items": [{"x": [[]] * 200_000}]}, 400),
}


def callbacks_are_over(http: httpx2.Client) -> None:
    """A callback is timed when it ends: the one that answered has ended when the next is answered."""
    assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_request_waits_for_the_body_of_another(server: Server, attack: str) -> None:
    operation, body, status = ATTACKS[attack]
    with server.http(server.key()) as http:
        # The first call of all has imports and connections to make.
        assert http.get("/api/v1/operations").status_code == 200
        with slowest_callback() as slowest:
            answer = http.post(f"/api/v1/operations/{operation}/batches", json=body)
            callbacks_are_over(http)
        assert answer.status_code == status, answer.text[:500]
        slowest.check()
        if status == 202:
            with slowest_callback() as slowest:
                assert http.get(answer.json()["status_url"]).status_code == 200
                callbacks_are_over(http)
            slowest.check()


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/uploads", "/v1/webhook_endpoints"])
def test_many_errors_are_reported_quickly(server: Server, path: str) -> None:
    many = {f"key{number}": 1 for number in range(60_000)}
    bodies = (many, {"metadata": many}, {"expires_after": many}, {"event_types": ["x"] * 90_000})
    with server.http(server.key()) as http:
        assert http.post(path, json={}).status_code == 400
        with slowest_callback() as slowest:
            assert [http.post(path, json=body).status_code for body in bodies] == [400] * len(bodies)
            callbacks_are_over(http)
        slowest.check()


# --- Limits of time and memory -----------------------------------------------------------------------------


def test_a_check_ends_with_its_time_and_the_next_one_is_answered() -> None:
    validators = Validators()
    try:
        began = os.times().children_user
        with pytest.raises(ValidationTooLong, match="cannot be checked within 2 s"):
            validators.faults(ItemSchema(BRANCHING), [nested(60)])
        # The time to start it is not limited, and other children may end meanwhile.
        assert os.times().children_user - began < 5 * MAX_SECONDS
        assert validators.faults(ItemSchema(BRANCHING), [{"a": {"a": 5}}]) == []
        (fault,) = validators.faults(ItemSchema(object_of(cpu={"maximum": 4})), [{"cpu": 5}])
        assert (fault.position, fault.message) == ("items[0].cpu", "5 is greater than the maximum of 4")
    finally:
        validators.close()


def test_only_the_first_errors_are_reported(server: Server) -> None:
    with server.http(server.key()) as http:
        answer = http.post("/api/v1/operations/labels/batches", json={"items": [labels(500, 1)]})
    message = answer.json()["error"]["message"]
    assert message.count('1 is not of type "string"') == 20
    assert "items[0].labels.label00000: " in message


def test_values_in_texts_do_not_count() -> None:
    assert not has_too_many_values(json.dumps({"a": "[,{" * MAX_VALUES}).encode())
    assert has_too_many_values(json.dumps([0] * (MAX_VALUES + 2)).encode())


async def test_a_tenant_that_keeps_a_thread_busy_leaves_one_to_the_others() -> None:
    pool = PreparingPool()
    release = threading.Event()
    try:
        slow = [asyncio.create_task(pool.run("snail", lambda _: release.wait())) for _ in range(5)]
        assert await pool.run("hare", lambda _: "served") == "served"
        assert not any(task.done() for task in slow)
        release.set()
        assert await asyncio.gather(*slow) == [True] * 5
    finally:
        release.set()
        await pool.close()


# --- Patterns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["^(?=.*a).+$", "(a)\\1", "^(?!x)", "(?<=a)b", "a{1,1000}{1,1000}", "["])
@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused_at_the_start(
    tmp_path: Path, pattern: str, where: str
) -> None:
    schema = object_of(name={"pattern": pattern}) if where == "pattern" else {where: {pattern: {}}}
    with pytest.raises(InvalidOperation, match="cannot be matched in linear time"):
        an_operation("x", schema)


def test_a_refused_pattern_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "batchline.toml"
    path.write_text(
        """
        [[upstreams]]
        name = "u"
        base_url = "http://127.0.0.1:1"
        [[operations]]
        name = "x"
        upstream = "u"
        path = "/x"
        [operations.schema]
        type = "object"
        properties = { name = { pattern = "^(?=a)" } }
        """
    )
    with pytest.raises(SettingsError) as refused:
        registry_of(load(path, {}).server)
    said = str(refused.value)
    assert "line 9: operations.x.schema: the pattern at ['properties']['name']['pattern']" in said
    assert "Write it without look-around and back-references" in said


def test_patterns_mean_what_they_mean_in_ecma() -> None:
    schema = ItemSchema(object_of(env={"type": "string", "pattern": "^(production|test)$"}))
    assert schema.faults([{"env": "production"}]) == []
    assert len(schema.faults([{"env": "production\n"}])) == 1
    assert len(schema.faults([{"env": "x\nproduction"}])) == 1


# --- Keys come before bodies -------------------------------------------------------------------------------


def routes_with_bodies(http: httpx2.Client) -> Iterator[tuple[str, str]]:
    for path, methods in http.get("/openapi.json").json()["paths"].items():
        for method, described in methods.items():
            if "requestBody" in described:
                yield method.upper(), path.replace("{", "").replace("}", "")


def test_no_body_is_read_before_its_sender_is_known(server: Server) -> None:
    """Only callers with a key learn that a body is no JSON or no form. A sign-in has its key in the body."""
    tried = 0
    with server.http() as stranger:
        for method, path in set(routes_with_bodies(stranger)) - {("POST", "/api/v1/session")}:
            for content_type in ("application/json", "multipart/form-data; boundary=x"):
                answer = stranger.request(
                    method, path, content=b"[" * 100_000, headers={"content-type": content_type}
                )
                assert answer.status_code == 401, (method, path, answer.text)
                tried += 1
    assert tried >= 40


def test_an_unauthenticated_request_is_answered_before_its_body(server: Server) -> None:
    """If it waited for the body, it would answer 408."""
    for path in (
        b"/v1/batches",
        b"/v1/files",
        b"/v1/webhook_endpoints",
        b"/api/v1/operations/labels/batches",
    ):
        head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" % path
        answer = spoken(server, head + b"content-length: 1000\r\nconnection: close\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 401 "), answer
