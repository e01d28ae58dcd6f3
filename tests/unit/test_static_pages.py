"""Static files of the dashboard: only those of the folder, with their types, and only if they changed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from batchline.api.dashboard.pages import StaticPages
from batchline.api.errors import handle_errors


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "static"
    (folder / "pages").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "app.js").write_text("go()")
    (folder / "pages" / "batch.js").write_text("show()")
    (folder / "notes.txt").write_text("not served")
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.include_router(StaticPages(folder).router())
    handle_errors(app, lambda scope: None)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        yield client


async def test_every_path_of_the_page_answers_the_page(http: AsyncClient) -> None:
    for path in ("/", "/ui", "/ui/", "/ui/batches/batch_1?q=x"):
        answer = await http.get(path)
        assert (answer.status_code, answer.text) == (200, "<!doctype html>"), path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


async def test_assets_have_their_types_and_nothing_else_is_served(http: AsyncClient) -> None:
    script = await http.get("/ui/assets/app.js")
    assert (script.text, script.headers["content-type"]) == ("go()", "text/javascript; charset=utf-8")
    assert (await http.get("/ui/assets/pages/batch.js")).text == "show()"
    for path in ("nothing.js", "notes.txt", "..%2fsecret.txt", "..%2f..%2fsecret.txt", ""):
        assert (await http.get(f"/ui/assets/{path}")).status_code == 404, path


async def test_a_file_that_has_not_changed_is_not_sent_again(http: AsyncClient) -> None:
    first = await http.get("/ui/assets/app.js")
    again = await http.get("/ui/assets/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["cache-control"] == "no-cache"
