"""Nothing that a user or an upstream writes moves a terminal's cursor; and JSON that is none is told so."""

import json
from collections.abc import Iterator

import pytest

from batchline.cli.display.console import err, out, print_json
from batchline.governance.registry import Registry
from tests.support.governance import RESIZE, items
from tests.support.operations_client import SETTINGS
from tests.support.parsing import read
from tests.support.scenes import database
from tests.support.serving import Server, serving

EVIL = ["\x1b[2J", "a\nb", "a\rb", "\x00", "a\x7f", "\x9b31m", "a\u2028b", "\u202egnp.exe", "\u2066x"]


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, Registry([RESIZE])) as running,
    ):
        yield running


@pytest.mark.parametrize("custom_id", EVIL)
def test_a_custom_id_has_no_control_characters(server: Server, custom_id: str) -> None:
    with server.http(server.key()) as http:
        requested = {"items": items(1), "custom_ids": [custom_id]}
        answer = http.post("/api/v1/operations/resize/batches", json=requested)
        held = http.post("/api/v1/operations/resize/batches", json={"items": items(1), "hold": True}).json()
        appended = http.post(f"/api/v1/batches/{held['batch_id']}/append", json=requested)
    for refused in (answer, appended):
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == "custom_ids"
        assert refused.json()["error"]["message"] == "A custom_id must not contain control characters."


@pytest.mark.parametrize("custom_id", EVIL)
def test_a_line_whose_custom_id_has_control_characters_is_refused(custom_id: str) -> None:
    body = {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": {"model": "m"}}
    (error,) = read(json.dumps(body).encode())[0].errors()
    assert error.code == "invalid_custom_id"


def test_other_letters_may_be_in_a_custom_id(server: Server) -> None:
    with server.http(server.key()) as http:
        requested = {"items": items(2), "custom_ids": ["größe 1 ✓", "名前"]}
        assert http.post("/api/v1/operations/resize/batches", json=requested).status_code == 202


@pytest.mark.parametrize("text", EVIL)
def test_control_characters_are_escaped_on_a_terminal(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Errors of upstreams and reasons of users are printed too."""
    out().print(f"<{text}>", markup=False)
    err().print(f"<{text}>", markup=False)
    print_json({"text": text})
    printed = "".join(capsys.readouterr())
    for sign in set(text) - {"\n"}:
        if not sign.isprintable():
            assert sign not in printed
            assert f"\\u{ord(sign):04x}" in printed or (sign == "\r" and "\\r" in printed)


def test_what_is_printed_as_json_is_the_same_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"texts": EVIL, "größe": "✓ \\u001b"}
    print_json(document)
    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_value_that_is_not_a_json_number_is_named(server: Server, number: str) -> None:
    body = f'{{"items": [{{"vm": "NaN", "cpu": {number}}}]}}'
    said = f"{number} is not a JSON number; write null or a string"
    with server.http(server.key()) as http:
        answer = http.post(
            "/api/v1/operations/resize/batches", content=body, headers={"content-type": "application/json"}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"The body is not valid JSON: {said}."
    line = f'{{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{{"model":"m","x":{number}}}}}'
    (error,) = read(line.encode())[0].errors()
    assert error.message == f"not valid JSON: {said}"


def test_other_invalid_json_is_not_reported_as_a_number(server: Server) -> None:
    with server.http(server.key()) as http:
        answer = http.post(
            "/v1/batches", content='{"a": "NaN", }', headers={"content-type": "application/json"}
        )
    assert answer.json()["error"]["message"] == "The body is not valid JSON."
