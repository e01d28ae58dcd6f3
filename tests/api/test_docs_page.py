"""/docs comes with all its parts from the server itself, and its policy allows nothing else."""

import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from playwright.sync_api import expect

from tests.support.chromium import running_chromium, visiting
from tests.support.serving import serving

_ADDRESS = re.compile(r"""(?:src|href)=["']([^"']+)["']""")


def test_the_page_and_all_that_it_names_come_from_the_server(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path) as server, server.http() as nobody:
        page = nobody.get("/docs")
        addresses = [urljoin(f"{server.url}/docs", each) for each in _ADDRESS.findall(page.text)]
        assert len(addresses) == 5
        for address in addresses:
            assert address.startswith(server.url)
            answer = nobody.get(urlsplit(address).path)
            assert answer.status_code == 200
            assert len(answer.content) > 100
        assert "://" not in page.text
        for path in ("/docs", "/docs/start.js", "/docs/swagger-ui.css"):
            assert nobody.get(path).headers["x-content-type-options"] == "nosniff"


def test_the_policy_allows_neither_inline_scripts_nor_other_hosts(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path) as server, server.http() as nobody:
        page = nobody.get("/docs")
        policy = dict(
            part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";")
        )
        assert policy.pop("default-src") == "'none'"
        assert policy.pop("img-src") == "'self' data:"
        assert {policy.pop(name) for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert policy == dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'")
        assert "<style" not in page.text
        assert "<script>" not in page.text


def test_there_is_no_page_that_needs_another_host(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path) as server, server.http() as nobody:
        assert nobody.get("/redoc").status_code == 404


def test_a_browser_shows_it_without_a_request_to_another_host(database_url: str, tmp_path: Path) -> None:
    with (
        serving(database_url, tmp_path) as server,
        running_chromium() as browser,
        visiting(browser, server.url) as visit,
    ):
        page = visit.context.new_page()
        page.goto("/docs")
        operation = page.locator(".opblock", has_text="/v1/batches").first
        expect(operation).to_be_visible()
        expect(page.locator(".info .title")).to_contain_text("Batchline")
        # An operation opens: its parts are loaded when they are needed.
        operation.locator(".opblock-summary").click()
        expect(operation.locator(".opblock-body")).to_be_visible()
        assert visit.reported == []
        assert f"{server.url}/openapi.json" in visit.requested
        assert visit.requested_elsewhere(server.url) == []
