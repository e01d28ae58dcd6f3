"""Who may call: keys, tenants, and what a stranger is told."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.store.pool import Sessions
from batchline.store.session import StoreUnavailable
from tests.scenes import database
from tests.serving import Server, serving


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


def test_health_needs_no_key_and_readiness_asks_the_stores(server: Server) -> None:
    with server.http() as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ready", "database": "ok", "objects": "ok"}


def test_the_documents_are_public(server: Server) -> None:
    with server.http() as http:
        assert http.get("/openapi.json").json()["info"]["title"] == "Batchline"
        assert http.get("/docs").status_code == 200


def test_an_unknown_path_and_method_are_told_in_the_envelope(server: Server) -> None:
    with server.http() as http:
        for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/healthz", 405)):
            answer = http.request(method, path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_pool_with_all_sessions_taken_says_so_instead_of_waiting_for_ever(database_url: str) -> None:
    async def scenario() -> None:
        sessions = Sessions(database_url, most=1, patience=0.05)
        async with sessions.one():
            with pytest.raises(StoreUnavailable, match="all 1 connections are busy"):
                async with sessions.one():
                    pass
            async with sessions.stream():
                pass
        async with sessions.one():
            pass
        await sessions.close()

    asyncio.run(scenario())


def test_readiness_tells_which_store_is_away(tmp_path: Path) -> None:
    with serving("postgresql://127.0.0.1:9/none", tmp_path) as server, server.http() as http:
        answer = http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "database": "unavailable", "objects": "ok"}
