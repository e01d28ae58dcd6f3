"""/openapi.json names every operation: off loopback it takes a key, unless the operator says otherwise."""

from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from batchline.config import load
from batchline.config.settings import ServerSettings
from tests.support.server_process import served
from tests.support.serving import NOWHERE, serving

SETTINGS = ServerSettings(upstreams=(NOWHERE,), sessions=4, streams=2)
DOCUMENTS = ("/openapi.json", "/docs", "/docs/swagger-ui-bundle.js")


def test_a_private_openapi_document_needs_a_key_and_has_no_pages(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path, replace(SETTINGS, public_openapi=False)) as server:
        with server.http() as nobody:
            assert [nobody.get(path).status_code for path in DOCUMENTS] == [401, 404, 404]
        with server.http("bl-no-such-key") as stranger:
            assert stranger.get("/openapi.json").status_code == 401
        with server.http(server.key()) as user:
            assert "/api/v1/operations" in user.get("/openapi.json").json()["paths"]


def test_a_public_openapi_document_needs_no_key(database_url: str, tmp_path: Path) -> None:
    with (
        serving(database_url, tmp_path, replace(SETTINGS, public_openapi=True)) as server,
        server.http() as nobody,
    ):
        assert [nobody.get(path).status_code for path in DOCUMENTS] == [200] * 3


def test_without_keys_no_strange_page_reads_it(database_url: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, authentication=False)
    with serving(database_url, tmp_path, settings) as server, server.http() as browser:
        assert browser.get("/openapi.json").status_code == 200
        assert browser.get("/openapi.json", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("host", "switch", "status"),
    [
        ("127.0.0.1", None, 200),
        ("127.0.0.1", "false", 401),
        ("0.0.0.0", None, 401),
        ("0.0.0.0", "true", 200),
    ],
)
def test_it_is_public_on_loopback_only_unless_set_otherwise(
    database_url: str, tmp_path: Path, host: str, switch: str | None, status: int
) -> None:
    environment = {} if switch is None else {"BATCHLINE_SERVER_PUBLIC_OPENAPI": switch}
    with served(database_url, tmp_path, "--no-worker", "--host", host, **environment) as server:
        port = server.url.rpartition(":")[2]
        assert httpx2.get(f"http://127.0.0.1:{port}/openapi.json", timeout=60).status_code == status


def test_the_switch_can_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "batchline.toml"
    path.write_text("[server]\npublic_openapi = true\n")
    assert load(path, {}).server.public_openapi is True
    assert load(None, {}).server.public_openapi is None
