"""A key with the role monitor reads /metrics and /api/v1/demand. Every other route refuses it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batchline.model import Role
from tests.support.operations_client import REGISTRY, SETTINGS
from tests.support.page_client import PageClient
from tests.support.routes import routes
from tests.support.scenes import database
from tests.support.serving import Server, serving

PRIVATE = replace(SETTINGS, public_openapi=False)
ALLOWED = {"/metrics", "/api/v1/demand"}
# Those that need no key. They show nothing of any tenant.
PUBLIC = {"/healthz", "/readyz", "/", "/ui", "/ui/{path:path}", "/ui/assets/{name:path}", "/signin"}
SIGN_IN = ("POST", "/api/v1/session")


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), PRIVATE, REGISTRY) as running,
    ):
        yield running


def test_every_other_route_refuses_it(server: Server, tmp_path: Path) -> None:
    found = routes(tmp_path)
    assert len(found) > 80
    with server.http(server.key("acme", Role.MONITOR)) as http:
        for method, path in sorted(found):
            if path in PUBLIC or (method, path) == SIGN_IN:
                continue
            answer = http.request(method, re.sub(r"{[^}]+}", "x", path), json={} if method != "GET" else None)
            if path in ALLOWED:
                assert answer.status_code == 200, path
            else:
                assert answer.status_code == 403, (method, path, answer.text)
                assert method == "HEAD" or answer.json()["error"]["code"] == "PERMISSION_DENIED"


def test_the_public_routes_are_these(server: Server, tmp_path: Path) -> None:
    """A new route that authenticates nobody must be added here on purpose."""
    found = routes(tmp_path)
    with server.http() as nobody:
        open_to_all = {
            (method, path)
            for method, path in found
            if nobody.request(method, re.sub(r"{[^}]+}", "x", path)).status_code != 401
        }
    assert open_to_all - {SIGN_IN} == {(method, path) for method, path in found if path in PUBLIC}


def test_it_signs_no_browser_in(server: Server) -> None:
    browser = PageClient(server)
    answer = browser.sign_in(server.key("acme", Role.MONITOR))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
    assert "set-cookie" not in answer.headers
    browser.http.close()
