"""Attacks on the dashboard by users and other sites: others notice nothing, and nothing of theirs is seen."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psycopg
import pytest

from batchline.api.browser import CONTENT_SECURITY_POLICY
from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.dashboard.playground import MAX_PER_TENANT
from batchline.model import Role, ids
from batchline.store.session import Session
from tests.support.builders import a_batch, on
from tests.support.gated_upstream import gated_upstream
from tests.support.page_client import DASHBOARD, listening, signed_in
from tests.support.raw_http import spoken
from tests.support.routes import routes
from tests.support.serving import Server, serving
from tests.support.waiting import wait_for

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
# It needs a key, and no session.
SIGN_IN = ("POST", "/api/v1/session")
TRIAL = {"endpoint": "/v1/chat/completions", "body": CHAT}


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with serving(database_url, tmp_path) as running:
        yield running


def test_the_beginning_of_an_id_finds_no_batches_of_other_tenants(server: Server) -> None:
    async def work(db: Session) -> tuple[str, str]:
        theirs, own = await a_batch(db, tenant="other"), await a_batch(db, tenant="acme")
        return ids.show(ids.BATCH, theirs.id), ids.show(ids.BATCH, own.id)

    theirs, own = on(server.database, work)
    with server.http(server.key("acme", Role.ADMIN)) as http:
        for digits in (own.removeprefix(ids.BATCH)[:8], theirs.removeprefix(ids.BATCH)[:8], theirs):
            requested = {"action": "cancel", "filter": {"q": digits}}
            made = http.post(f"{DASHBOARD}/actions", json=requested)
            assert made.status_code == 202, made.text
            found = http.get(f"{DASHBOARD}/batches", params={"q": digits})
            log = http.get(f"{DASHBOARD}/audit", params={"action": "action.started"})
            for answer in (made, found, log):
                text = answer.text.replace(f'"q":"{digits}"', "")
                assert theirs.removeprefix(ids.BATCH) not in text.replace("-", ""), answer.url


def test_searches_of_one_user_use_only_a_share_of_the_connections(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path) as server, ThreadPoolExecutor(20) as pool:
        flooding = server.key("acme", Role.ADMIN, "mallory")
        colleague, other = server.key("acme", Role.ADMIN, "anna"), server.key("other", Role.ADMIN)

        def search(path: str) -> int:
            with server.http(flooding) as http:
                return http.get(f"{DASHBOARD}/{path}").status_code

        with psycopg.connect(database_url, autocommit=True) as holder, psycopg.connect(database_url) as lock:
            # A search that takes as long as the test wants.
            lock.execute("LOCK TABLE batchline.audit_log IN ACCESS EXCLUSIVE MODE")
            running = [pool.submit(search, "audit?q=x") for _ in range(server.settings.sessions * 2)]
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
            wait_for("a search to wait", lambda: holder.execute(waiting).fetchone() != (0,))
            try:
                for key in (other, colleague):
                    with server.http(key) as http:
                        assert http.get("/v1/batches").status_code == 200
                        assert http.get(f"{DASHBOARD}/batches").status_code == 200
            finally:
                lock.rollback()
        # Those that waited for too long were told so.
        assert {each.result() for each in running} <= {200, 429}


def test_trials_of_one_tenant_do_not_keep_others_from_trying(database_url: str, tmp_path: Path) -> None:
    with gated_upstream() as upstream, ThreadPoolExecutor(8) as pool:
        settings = UpstreamSettings("gpu", f"{upstream.url}/v1")
        upstream.allow(0)
        chosen = ServerSettings(upstreams=(settings,), sessions=8, streams=4)
        with serving(database_url, tmp_path, chosen) as server:
            keys = [server.key("acme", name=f"user {number}") for number in range(8)]
            other = server.key("other")

            def attempt(key: str) -> httpx2.Response:
                with server.http(key) as http:
                    return http.post(f"{DASHBOARD}/playground", json=TRIAL)

            running = [pool.submit(attempt, key) for key in keys[:MAX_PER_TENANT]]
            wait_for("the upstream to have them", lambda: upstream.questions["hello"] == MAX_PER_TENANT)
            refused = attempt(keys[-1])
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_trials")
            assert "retry-after" in refused.headers
            last = pool.submit(attempt, other)
            wait_for("that of the other tenant", lambda: upstream.questions["hello"] == MAX_PER_TENANT + 1)
            upstream.allow(100)
            assert [each.result().status_code for each in (*running, last)] == [200] * (MAX_PER_TENANT + 1)
            assert attempt(keys[-1]).status_code == 200


def test_unexpected_errors_and_refused_heads_have_the_headers_of_all_answers(server: Server) -> None:
    key = server.key()
    with psycopg.connect(server.database, autocommit=True) as db, server.http(key) as http:
        db.execute("ALTER TABLE batchline.webhooks RENAME TO gone")
        answer = http.get("/v1/webhook_endpoints")
    assert answer.status_code == 500
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    with server.http() as http:
        for path in ("/docs/none", "/redoc", "/nowhere", "/v1/batches"):
            found = http.get(path)
            assert found.headers["content-security-policy"] == CONTENT_SECURITY_POLICY, path
            assert found.headers["x-content-type-options"] == "nosniff"
    assert b"x-content-type-options: nosniff" in spoken(server, b"no http\r\n\r\n")


def test_operators_see_what_admins_of_their_tenant_see(server: Server) -> None:
    with server.http(server.key("acme", Role.OPERATOR)) as http:
        assert http.get(f"{DASHBOARD}/audit").status_code == 200


def test_a_stranger_cannot_make_the_server_read_a_large_body(server: Server) -> None:
    with server.http() as nobody:
        for content in (b'{"key": "%b"}' % (b"x" * 10_000), iter([b'{"key": "', b"x" * 10_000, b'"}'])):
            headers = {"origin": server.url, "content-type": "application/json"}
            answer = nobody.post("/api/v1/session", content=content, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_no_change_is_accepted_with_a_cookie_alone(server: Server, tmp_path: Path) -> None:
    """As a form of another site would send it, and as a script without the token."""
    changes = [each for each in routes(tmp_path) if each[0] not in ("GET", "HEAD") and each != SIGN_IN]
    assert len(changes) > 40
    with signed_in(server, "acme") as browser:
        for method, path in changes:
            filled = re.sub(r"{[^}]+}", "x", path)
            for headers in ({}, {"origin": server.url}, {"origin": "https://evil.example"}):
                sent = {**headers, "content-type": "text/plain"}
                answer = browser.http.request(method, filled, headers=sent, content=b"{}")
                assert (answer.status_code, method) == (403, method), (path, headers, answer.text)


def test_erasing_a_tenant_ends_its_sessions_and_live_updates(server: Server) -> None:
    with signed_in(server, "acme") as browser, server.http(server.key("ops", Role.OPERATOR)) as operator:
        with listening(browser.http) as events:
            events.until("overview")
            done = operator.post("/api/v1/admin/tenants/acme/erase", json={"confirm": "acme"})
            assert done.status_code == 202, done.text
            with pytest.raises(StopIteration):
                events.until("the end")
        assert browser.http.get("/api/v1/session").status_code == 401
