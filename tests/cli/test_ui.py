"""`batchline ui` as a real process: one browser, once, under its own address."""

from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from batchline.api.browser import COOKIE
from tests.support.builders import a_batch, on
from tests.support.page_client import DASHBOARD
from tests.support.ui_process import displayed


def test_the_address_signs_one_browser_in_once(database_url: str, tmp_path: Path) -> None:
    on(database_url, lambda db: a_batch(db, 3))
    with displayed(database_url, tmp_path) as ui, httpx2.Client(base_url=ui.url, timeout=60) as http:
        assert http.get(f"{DASHBOARD}/overview").status_code == 401
        wrong = http.get("/signin", params={"token": "wrong"})
        assert (wrong.status_code, COOKIE in http.cookies) == (403, False)
        answer = http.get(ui.address)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "Secure" not in answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
        (row,) = http.get(f"{DASHBOARD}/batches").json()["data"]
        assert row["counts"]["pending"] == 3
        session = http.get("/api/v1/session").json()
        assert (session["user"], session["role"], session["tenant"]) == ("local", "admin", "default")
        # Another browser that has seen the address comes too late.
        with httpx2.Client(base_url=ui.url, timeout=60) as late:
            assert late.get(ui.address).status_code == 403
            assert late.get(f"{DASHBOARD}/batches").status_code == 401
        own = {"origin": ui.url, "x-batchline-csrf": session["csrf"]}
        path = f"/v1/batches/{row['id']}/cancel"
        assert http.post(path, headers={"origin": ui.url}).status_code == 403
        assert http.post(path, headers=own).status_code == 200
        assert http.delete("/api/v1/session", headers=own).status_code == 204
        assert http.get(f"{DASHBOARD}/overview").status_code == 401


def test_a_name_that_leads_to_this_machine_reaches_nothing(database_url: str, tmp_path: Path) -> None:
    with displayed(database_url, tmp_path) as ui, httpx2.Client(base_url=ui.url, timeout=60) as http:
        port = urlsplit(ui.url).port
        http.get(ui.address)
        for host in (f"evil.example:{port}", "evil.example", "127.0.0.1:1", f"127.0.0.1.evil.example:{port}"):
            for path in (f"{DASHBOARD}/batches", "/", "/healthz", "/api/v1/session"):
                answer = http.get(path, headers={"host": host})
                assert answer.status_code == 421, (host, path)
        assert http.get(f"{DASHBOARD}/batches", headers={"host": f"localhost:{port}"}).status_code == 200


def test_it_shows_the_tenant_that_it_is_given(database_url: str, tmp_path: Path) -> None:
    on(database_url, lambda db: a_batch(db, 3, tenant="acme"))
    with (
        displayed(database_url, tmp_path, "--tenant", "acme") as ui,
        httpx2.Client(base_url=ui.url, timeout=60) as http,
    ):
        http.get(ui.address)
        assert len(http.get(f"{DASHBOARD}/batches").json()["data"]) == 1
