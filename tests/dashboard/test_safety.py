"""Data is text, sessions end, and addresses from outside lead nowhere else."""

import json
import re
from importlib.resources import files
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

from batchline.batches.output import answered_line
from batchline.model import Completed, Failed, Item, Verdict, ids
from batchline.store import spans
from batchline.store.session import Session
from tests.support.builders import a_worker, on, sql, take
from tests.support.dashboard_site import CHAT, confirm, sign_in
from tests.support.serving import Server

STATIC = Path(str(files("batchline.dashboard") / "static"))
MARKUP = '<b>bold</b><img src=/ui/pixel onerror="document.title=`broken`">'


def a_batch_of_markup(server: Server, tenant: str) -> str:
    """Markup in its name, model, ids, requests, answers and errors: one line completed, and one failed."""
    lines = [
        {
            "custom_id": f"{MARKUP} {number}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": f"model {MARKUP}", "messages": [{"role": "user", "content": MARKUP}]},
        }
        for number in (1, 2, 3)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with server.client(tenant) as client:
        file = client.files.create(file=("markup.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"name": MARKUP}
        )
    batch_id = ids.read(ids.BATCH, batch.id)

    async def scenario(db: Session) -> None:
        worker = a_worker()
        first, second, *_ = await take(db, worker, 2, spans.Scope(batch_id=batch_id))
        await spans.settle(db, worker.id, [answered(first, 200), answered(second, 400)])

    on(server.database, scenario)
    return batch.id


def answered(item: Item, status: int) -> Verdict:
    body = (
        {"choices": [{"message": {"content": MARKUP}}]} if status == 200 else {"error": {"message": MARKUP}}
    )
    line = answered_line(item, status, "req_1", json.dumps(body).encode())
    return Completed(item, status, line) if status == 200 else Failed(item, line, status)


def test_markup_in_names_ids_errors_and_answers_appears_as_text(
    page: Page, server: Server, tenant: str
) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    batch = a_batch_of_markup(server, tenant)
    address = f"/ui/batches/{batch}"
    for path in (
        "/",
        "/ui/batches",
        address,
        f"{address}/failures",
        f"{address}/items",
        f"{address}/items/1",
        f"{address}/items/2",
        "/ui/files",
    ):
        page.goto(path)
        expect(page.locator("main")).to_contain_text("<b>bold</b>")
        assert page.locator("main b", has_text=re.compile("^bold$")).count() == 0
        assert page.title() != "broken"
    page.goto(f"{address}/items/1")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("<b>bold</b>")
    page.goto(f"{address}/output")
    page.get_by_role("button", name="Show the first 10 lines").click()
    expect(page.get_by_role("region", name="Line 1", exact=True)).to_contain_text("<b>bold</b>")
    page.goto(address)
    page.get_by_role("button", name="Pause").click()
    confirm(page, "Pause")
    expect(page.get_by_text(f"Paused: {MARKUP}")).to_be_visible()
    assert not [url for url in requested if "pixel" in url]


def test_no_module_writes_markup() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://")
    found = [
        f"{path.name}:{number}"
        for path in STATIC.rglob("*.js")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line.replace("http://www.w3.org/2000/svg", ""))
    ]
    assert found == []


def test_a_user_signs_in_with_a_key_and_returns_to_the_page(
    context: BrowserContext, server: Server, tenant: str
) -> None:
    page = context.new_page()
    page.goto("/ui/batches?status=paused")
    expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()
    expect(page.get_by_role("navigation", name="Main")).to_be_hidden()
    page.get_by_label("API key").fill("bl-wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Incorrect API key provided.")
    page.get_by_label("API key").fill(server.key(tenant))
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/ui/batches\?status=paused$"))
    expect(page.get_by_text("No batch matches")).to_be_visible()
    # Scripts cannot read the cookie.
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()
    page.goto("/ui/batches")
    expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()


def test_a_sign_in_leads_to_no_other_host(context: BrowserContext, server: Server, tenant: str) -> None:
    page = context.new_page()
    key = server.key(tenant)
    for target in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        page.goto(f"/ui/signin?next={target}")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert page.url == f"{server.url}/"
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()


def test_an_expired_session_leads_to_the_sign_in_by_itself(
    context: BrowserContext, server: Server, tenant: str
) -> None:
    sign_in(context, server, server.key(tenant))
    page = context.new_page()
    page.goto("/ui/files")
    expect(page.get_by_role("heading", name="Files")).to_be_visible()

    async def expire(db: Session) -> None:
        await sql(db, "UPDATE batchline.browser_sessions SET expires_at = now() - interval '1 s'")

    on(server.database, expire)
    expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()
    expect(page).to_have_url(re.compile(r"next=%2Fui%2Ffiles"))
    page.get_by_label("API key").fill(server.key(tenant))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Files")).to_be_visible()


def test_a_forged_session_shows_nothing(context: BrowserContext, server: Server) -> None:
    context.add_cookies([{"name": "batchline_session", "value": "A" * 43, "url": server.url}])
    page = context.new_page()
    page.goto("/ui/batches")
    expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()


def test_batches_of_others_and_missing_pages_say_so_with_the_request_id(page: Page, server: Server) -> None:
    batch = a_batch_of_markup(server, ids.new_id().hex)
    for address in (f"/ui/batches/{batch}", f"/ui/batches/{batch}/items/1", "/ui/batches/batch_0"):
        page.goto(address)
        expect(page.get_by_role("alert")).to_contain_text(
            re.compile("No such batch|not found", re.IGNORECASE)
        )
        expect(page.get_by_role("alert")).to_contain_text("in the server's log has the details")
    page.goto("/ui/nowhere")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
