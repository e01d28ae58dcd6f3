"""Signing in: cookies, their end, other sites, and what a stranger gets."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from batchline.api.browser import COOKIE
from batchline.governance import keys
from batchline.model import Role, ids
from batchline.store import keys as stored
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.page_client import DASHBOARD, PageClient, signed_in
from tests.support.scenes import database
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture
def browser(server: Server) -> Iterator[PageClient]:
    with signed_in(server, ids.new_id().hex) as browser:
        yield browser


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_key_signs_a_browser_in_and_the_cookie_is_all_it_needs(browser: PageClient) -> None:
    session = browser.session()
    assert (session["role"], len(session["csrf"])) == ("admin", 64)
    assert session["expires_at"] is not None
    assert browser.get("batches")["data"] == []
    # Also what is not part of the dashboard.
    assert browser.http.get("/v1/batches").status_code == 200


def test_the_cookie_is_kept_from_scripts_and_other_sites(server: Server) -> None:
    key = server.key(ids.new_id().hex)
    for host, secure in (("127.0.0.1", False), ("localhost:1", False), ("batch.example.com", True)):
        browser = PageClient(server)
        answer = browser.sign_in(key, host=host, origin=f"https://{host}")
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-{COOKIE}=" if secure else f"{COOKIE}=")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert ("Secure" in cookie) is secure
        browser.http.close()


def test_only_the_hash_of_the_cookie_is_stored(server: Server, browser: PageClient) -> None:
    secret = browser.http.cookies[COOKIE]

    async def rows(db: Session) -> list[tuple[bytes]]:
        return [(bytes(row[0]),) for row in await sql(db, "SELECT hash FROM batchline.browser_sessions")]

    found = on(server.database, rows)
    assert found
    assert all(secret.encode() not in row[0] and len(row[0]) == 32 for row in found)


def test_a_wrong_key_signs_nobody_in_and_attempts_are_limited(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("limited")) as server,
    ):
        good = server.key("acme")
        browser = PageClient(server)
        for _ in range(10):
            assert refusal(browser.sign_in("bl-wrong")) == (401, "invalid_api_key")
        assert COOKIE not in browser.http.cookies
        late = browser.sign_in(good)
        assert refusal(late) == (429, "too_many_sign_ins")
        assert 1 <= int(late.headers["retry-after"]) <= 60
        # A key in the header still works.
        with server.http(good) as http:
            assert http.get("/v1/batches").status_code == 200
        browser.http.close()


def test_behind_a_proxy_one_client_does_not_lock_out_others(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("proxied")) as server,
    ):
        browser = PageClient(server)
        attacker, other = ({"x-forwarded-for": f"192.0.2.{number}"} for number in (1, 2))
        for _ in range(10):
            assert refusal(browser.sign_in("bl-wrong", **attacker)) == (401, "invalid_api_key")
        good = server.key("acme")
        assert refusal(browser.sign_in(good, **attacker)) == (429, "too_many_sign_ins")
        assert browser.sign_in(good, **other).status_code == 204
        browser.http.close()


def test_signing_in_begins_a_new_session_whatever_cookie_was_sent(
    server: Server, browser: PageClient
) -> None:
    before = browser.http.cookies[COOKIE]
    tenant = browser.session()["tenant"]
    with server.http() as http:
        # An attacker has planted a cookie, known or made up.
        for planted in (before, "A" * 43):
            answer = http.post(
                "/api/v1/session",
                json={"key": server.key(tenant)},
                headers={"cookie": f"{COOKIE}={planted}", "origin": server.url},
            )
            assert answer.status_code == 204
            assert planted not in answer.headers["set-cookie"]
            http.cookies.clear()
    # What was planted is good for nothing now.
    assert refusal(browser.http.get("/api/v1/session")) == (401, "session_ended")


def test_a_session_ends_by_signing_out_with_time_and_with_its_key(server: Server) -> None:
    tenant = ids.new_id().hex

    async def expire(db: Session) -> None:
        await sql(db, "UPDATE batchline.browser_sessions SET expires_at = now() - interval '1 s'")

    async def revoke(db: Session) -> None:
        for key in await stored.list_all(db, tenant):
            await keys.revoke(db, key.id, "admin")

    with signed_in(server, tenant) as browser:
        planted = browser.http.cookies[COOKIE]
        assert browser.send("DELETE", "/api/v1/session").status_code == 204
        assert COOKIE not in browser.http.cookies
        browser.http.cookies.set(COOKIE, planted)
        assert refusal(browser.http.get("/api/v1/session")) == (401, "session_ended")
    for end in (expire, revoke):
        with signed_in(server, tenant) as browser:
            on(server.database, end)
            assert refusal(browser.http.get("/api/v1/session")) == (401, "session_ended")
            assert refusal(browser.http.get(f"{DASHBOARD}/overview")) == (401, "session_ended")


def test_a_change_needs_the_token_and_the_right_origin(server: Server, browser: PageClient) -> None:
    csrf = browser.session()["csrf"]
    own = {"origin": server.url, "x-batchline-csrf": csrf}
    path = "/v1/batches/batch_none/cancel"
    for headers in (
        {},
        {"origin": server.url},
        {"x-batchline-csrf": csrf},
        own | {"x-batchline-csrf": csrf[:-1] + ("0" if csrf[-1] != "0" else "1")},
        own | {"x-batchline-csrf": "é".encode().decode("latin-1")},
        own | {"origin": "https://evil.example"},
        own | {"origin": "null"},
        own | {"sec-fetch-site": "cross-site"},
        own | {"sec-fetch-site": "same-site"},
    ):
        sent = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        assert refusal(browser.http.post(path, headers=sent)) == (403, "forbidden"), headers
    assert browser.http.post(path, headers=own).status_code == 404
    assert browser.http.post(path, headers=own | {"sec-fetch-site": "same-origin"}).status_code == 404
    # The token of another session is of no use.
    with signed_in(server, ids.new_id().hex) as other:
        assert refusal(other.http.post(path, headers=own)) == (403, "forbidden")


def test_every_call_that_changes_something_is_protected(server: Server, browser: PageClient) -> None:
    paths = browser.http.get("/openapi.json").json()["paths"]
    calls = [
        (method.upper(), re.sub(r"{[^}]+}", "x", path))
        for path, methods in paths.items()
        for method in methods
        if method != "get" and (path, method) != ("/api/v1/session", "post")
    ]
    assert len(calls) > 20
    for method, path in calls:
        assert browser.http.request(method, path).status_code == 403, (method, path)


def test_other_sites_can_neither_read_nor_sign_in(server: Server, browser: PageClient) -> None:
    evil = {"origin": "https://evil.example"}
    assert refusal(browser.http.get(f"{DASHBOARD}/overview", headers=evil)) == (403, "forbidden")
    assert refusal(browser.sign_in("bl-x", **evil)) == (403, "forbidden")
    fetched = {"sec-fetch-site": "cross-site"}
    assert refusal(browser.http.get(f"{DASHBOARD}/overview", headers=fetched)) == (403, "forbidden")


def test_a_key_in_the_header_needs_no_token_even_with_a_cookie(server: Server, browser: PageClient) -> None:
    tenant = browser.session()["tenant"]
    key = server.key(tenant, Role.USER)
    answer = browser.http.post("/v1/batches/batch_none/cancel", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 404


def test_all_answers_have_strict_headers(server: Server, browser: PageClient) -> None:
    for path in ("/api/v1/session", f"{DASHBOARD}/overview", "/v1/batches", "/healthz", "/nowhere", "/"):
        headers = browser.http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
    assert browser.http.get("/api/v1/session").headers["cache-control"] == "no-store"


def test_requests_without_any_credentials_are_refused(server: Server) -> None:
    with server.http() as http:
        for path in (
            "overview",
            "batches",
            "batches/x",
            "batches/x/items",
            "files",
            "approvals",
            "audit",
            "events",
        ):
            assert http.get(f"{DASHBOARD}/{path}").status_code == 401, path
        http.cookies.set(COOKIE, "made up")
        assert refusal(http.get(f"{DASHBOARD}/overview")) == (401, "session_ended")
