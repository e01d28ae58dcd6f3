"""On every path, an unknown query parameter is a 400: a misspelt filter must not return everything."""

import re
from collections.abc import Iterator

import openai.types as client_types
import pytest

from batchline.model import Role
from tests.support.operations_client import REGISTRY, SETTINGS
from tests.support.scenes import database
from tests.support.serving import Server, serving

UNAUTHENTICATED = {"/healthz", "/readyz"}
CODES = {"/api/v1/admin/": "INVALID_REQUEST", "/api/v1/": "INVALID_BATCH_REQUEST", "/": "unknown_parameter"}


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


def test_every_path_refuses_them_and_names_those_that_exist(server: Server) -> None:
    refused = 0
    with server.http(server.key(role=Role.ADMIN)) as http:
        document = http.get("/openapi.json").json()
        for path, methods in document["paths"].items():
            if path in UNAUTHENTICATED:
                continue
            for method, route in methods.items():
                known = {each["name"] for each in route.get("parameters", ()) if each["in"] == "query"}
                answer = http.request(
                    method, re.sub(r"{[^}]+}", "x", path), params={**dict.fromkeys(known, "1"), "stauts": "1"}
                )
                assert answer.status_code == 400, (method, path, answer.text)
                error = answer.json()["error"]
                code = next(code for prefix, code in CODES.items() if path.startswith(prefix))
                assert (error["code"], error["param"]) == (code, "stauts"), (method, path)
                assert "stauts" in error["message"]
                assert all(name in error["message"] for name in known)
                refused += 1
    assert refused > 30


def test_a_long_name_is_not_repeated_in_full(server: Server) -> None:
    with server.http(server.key()) as http:
        answer = http.get("/v1/batches", params={"x" * 5000: "1"})
    assert answer.status_code == 400
    assert len(answer.content) < 500


def test_a_caller_without_a_key_does_not_learn_which_parameters_exist(server: Server) -> None:
    with server.http() as http:
        assert http.get("/api/v1/batches", params={"stauts": "1"}).status_code == 401


def test_a_submission_with_one_creates_nothing_and_is_counted(server: Server) -> None:
    with server.http(server.key(role=Role.ADMIN)) as http:
        answer = http.post(
            "/api/v1/operations/resize/batches", params={"hold": "true"}, json={"items": [{"vm": "a"}]}
        )
        assert answer.json()["error"]["code"] == "INVALID_BATCH_REQUEST"
        assert http.get("/api/v1/batches").json()["data"] == []
        assert 'batch_submit_total{batch_type="resize",result="invalid"}' in http.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/v1/files", client_types.FileListParams), ("/v1/batches", client_types.BatchListParams)],
)
def test_every_parameter_of_the_official_client_exists(server: Server, path: str, sent: type) -> None:
    with server.http() as http:
        document = http.get("/openapi.json").json()
    known = {each["name"] for each in document["paths"][path]["get"]["parameters"]}
    assert set(sent.__annotations__) <= known


def test_the_official_client_lists_with_all_its_parameters(server: Server) -> None:
    client = server.client("acme")
    assert client.files.list(limit=10, order="asc", purpose="batch").data == []
    assert client.batches.list(limit=10).data == []
    assert client.models.list().data == []
