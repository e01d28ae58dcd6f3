"""Who may call: keys, tenants, and what a stranger is told."""

import re
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from batchline.config.settings import ServerSettings
from batchline.governance import keys
from batchline.store import keys as stored
from batchline.store.pool import Sessions
from batchline.store.session import Session, StoreUnavailable
from tests.support.builders import on
from tests.support.scenes import database
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


def test_health_needs_no_key_and_readiness_checks_the_stores(server: Server) -> None:
    with server.http() as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ready", "database": "ok", "objects": "ok"}


def test_the_documents_are_public(server: Server) -> None:
    with server.http() as http:
        assert http.get("/openapi.json").json()["info"]["title"] == "Batchline"
        assert http.get("/docs").status_code == 200


def test_unknown_paths_and_methods_return_the_error_envelope(server: Server) -> None:
    with server.http() as http:
        for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/healthz", 405)):
            answer = http.request(method, path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def private_paths(server: Server) -> list[tuple[str, str]]:
    """Every call of the API, with ids that could be somebody's."""
    with server.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    calls = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [(method, re.sub(r"{[^}]+}", "x", path)) for method, path in calls if path.startswith("/v1/")]


def test_no_path_opens_without_a_key_that_is_known_and_not_revoked(server: Server) -> None:
    async def revoked(db: Session) -> str:
        key, secret = await keys.create(db, "old")
        await keys.revoke(db, key.id, "emil")
        return secret

    calls = private_paths(server)
    assert len(calls) > 6
    good = server.key()
    for header in (
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer bl-" + "A" * 43,
        f"Basic {good}",
        f"Bearer {good}x",
        f"Bearer {good[:-1]}",
        f"Bearer {on(server.database, revoked)}",
        "Bearer " + "é" * 20,
    ):
        headers = {} if header is None else {b"authorization": header.encode("latin-1")}
        with server.http() as http:
            for method, path in calls:
                # A body that would do, so that nothing but the key is in the way.
                body = _GOOD_BODIES.get((method, path), {})
                answer = http.request(method, path, headers=headers, json=body if method != "GET" else None)
                assert answer.status_code == 401, (header, method, path, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
                error = answer.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert good not in answer.text


_GOOD_BODIES: dict[tuple[str, str], dict[str, object]] = {
    ("POST", "/v1/batches"): {
        "input_file_id": "file-x",
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    },
    ("POST", "/v1/uploads"): {
        "filename": "x",
        "purpose": "batch",
        "bytes": 1,
        "mime_type": "text/plain",
    },
    ("POST", "/v1/uploads/x/complete"): {"part_ids": ["x"]},
    ("POST", "/v1/webhooks"): {"url": "https://example.com", "events": ["batch.completed"]},
}


def test_the_official_client_names_the_fault(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        server.client(key="bl-wrong").batches.list()
    assert refused.value.code == "invalid_api_key"


def test_a_key_stops_opening_when_it_is_revoked(server: Server) -> None:
    client = server.client("short-lived")
    assert client.batches.list().data == []

    async def revoke(db: Session) -> None:
        (key,) = await stored.list_all(db, "short-lived")
        await keys.revoke(db, key.id, "emil")

    on(server.database, revoke)
    with pytest.raises(openai.AuthenticationError):
        client.batches.list()


def test_without_keys_only_this_machine_is_answered(server_url: str, template: str, tmp_path: Path) -> None:
    settings = ServerSettings(authentication=False)
    with (
        database(server_url, template) as url,
        serving(url, tmp_path, settings) as server,
        server.http() as http,
    ):
        assert http.get("/v1/batches").status_code == 200
        for headers in (
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example:8080"},
            {"host": "localhost@evil.example"},
            {"host": "["},
            {"origin": "https://evil.example"},
            {"origin": "null"},
        ):
            answer = http.get("/v1/batches", headers=headers)
            assert answer.status_code == 403, headers
        for headers in ({"host": "localhost:1"}, {"host": "[::1]"}, {"origin": "http://localhost:3000"}):
            assert http.get("/v1/batches", headers=headers).status_code == 200, headers


async def test_a_full_pool_is_reported_after_a_limited_wait(database_url: str) -> None:
    sessions = Sessions(database_url, maximum=1, patience=0.05)
    async with sessions.one():
        with pytest.raises(StoreUnavailable, match="all 1 connections are busy"):
            async with sessions.one():
                pass
        async with sessions.stream():
            pass
    async with sessions.one():
        pass
    await sessions.close()


def test_readiness_names_the_unreachable_store(tmp_path: Path) -> None:
    with serving("postgresql://127.0.0.1:9/none", tmp_path) as server, server.http() as http:
        answer = http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "database": "unavailable", "objects": "ok"}
