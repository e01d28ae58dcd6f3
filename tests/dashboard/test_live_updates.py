"""Events change what is shown, and nothing under the pointer moves. A lost connection returns."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from batchline.dashboard.live import MAX_PER_USER
from batchline.model import Role, Verdict, ids
from batchline.store import spans
from batchline.store.session import Session
from tests.support.builders import a_worker, completed, failed, on, overrun, take
from tests.support.chromium import visiting
from tests.support.dashboard_site import (
    RestartableSite,
    created,
    overview_of,
    server_at,
    sign_in,
    site_config,
)
from tests.support.page_client import listening
from tests.support.processes import write_requests
from tests.support.serving import Server
from tests.support.waiting import wait_for

EVENTS = re.compile("/api/v1/dashboard/events")


def names(page: Page, within: str = "tbody") -> list[str]:
    return page.locator(f"{within} a.row-link").all_inner_texts()


def make(server: Server, tenant: str, folder: Path, name: str, lines: int = 10) -> str:
    return created(server, tenant, write_requests(folder / f"{name}.jsonl", lines))


def uuid_of(batch: str) -> UUID:
    found = ids.read(ids.BATCH, batch)
    assert found is not None
    return found


def work(server: Server, batch: str, *, good: int = 0, bad: int = 0) -> None:
    """A worker finishes lines of the batch."""

    async def scenario(db: Session) -> None:
        worker = a_worker()
        taken = await take(db, worker, good + bad, spans.Scope(batch_id=uuid_of(batch)))
        verdicts: Sequence[Verdict] = [*map(completed, taken[:good]), *map(failed, taken[good:])]
        await spans.settle(db, worker.id, verdicts)

    on(server.database, scenario)


def listens(page: Page, data: str) -> None:
    """Wait until the page has read its data once more after its stream of these batches has begun."""
    count = (
        "(data) => performance.getEntriesByType('resource').filter(({name}) => name.includes(data)).length"
    )
    wait_for("a page that listens", lambda: page.evaluate(count, data) >= 2)


def test_a_change_is_shown_and_marked(page: Page, server: Server, tenant: str, tmp_path: Path) -> None:
    batch = make(server, tenant, tmp_path, "eval")
    work(server, batch, bad=1)
    # An animation that ends would take the mark away before the test sees it.
    page.add_init_script(
        "document.addEventListener('animationend', (event) => event.stopPropagation(), true)"
    )
    page.goto("/ui/batches")
    row = page.get_by_role("row").filter(has_text="eval.jsonl")
    link = row.locator("a.bad-text")
    expect(link).to_have_text("1")
    work(server, batch, bad=2, good=4)
    expect(link).to_have_text("3")
    work(server, batch, good=1)
    expect(row).to_contain_text("80 %")
    expect(link, "a later change of something else leaves the mark").to_have_class(re.compile("changed"))


def test_new_batches_wait_behind_a_button(page: Page, server: Server, tenant: str, tmp_path: Path) -> None:
    make(server, tenant, tmp_path, "first")
    page.goto("/ui/batches")
    listens(page, "/dashboard/batches?")
    make(server, tenant, tmp_path, "second")
    expect(page.get_by_role("link", name="Show 1 new")).to_be_visible()
    assert names(page) == ["first.jsonl"]
    page.get_by_role("link", name="Show 1 new").click()
    expect(page.locator("tbody a.row-link")).to_have_text(["second.jsonl", "first.jsonl"])


def test_rows_of_the_overview_stay_while_the_pointer_is_on_them(
    page: Page, server: Server, tenant: str, tmp_path: Path
) -> None:
    first, second = (make(server, tenant, tmp_path, name) for name in ("first", "second"))
    page.goto("/")
    rows = page.locator(".open-batches tbody a.row-link")
    expect(rows).to_have_text(["first.jsonl", "second.jsonl"])
    page.locator(".open-batches tbody tr").nth(1).hover()
    on(server.database, lambda db: overrun(db, uuid_of(second)))
    expect(page.get_by_text("1 batch will be late")).to_be_visible()
    expect(rows).to_have_text(["first.jsonl", "second.jsonl"])
    page.mouse.move(0, 0)
    # With the next change, rows are in their order again.
    work(server, first, bad=1)
    expect(rows).to_have_text(["second.jsonl", "first.jsonl"])


def test_progress_is_announced_to_screen_readers(
    page: Page, server: Server, tenant: str, tmp_path: Path
) -> None:
    batch = make(server, tenant, tmp_path, "eval")
    page.goto(f"/ui/batches/{batch}")
    listens(page, f"/dashboard/batches/{batch}")
    work(server, batch, good=6, bad=1)
    announced = page.locator("body > [role=status].visually-hidden")
    expect(announced).to_have_text("eval.jsonl: In progress, 70 %, 1 failed")


def test_a_change_before_the_stream_began_is_not_lost(
    page: Page, server: Server, tenant: str, tmp_path: Path
) -> None:
    batch = make(server, tenant, tmp_path, "eval")
    changed: list[str] = []

    def change_first(route: Route) -> None:
        # The page asks for this stream when it has read its data. Nobody listens yet.
        if batch in route.request.url and not changed:
            work(server, batch, bad=2)
            changed.append(batch)
        route.continue_()

    page.route(EVENTS, change_first)
    page.goto(f"/ui/batches/{batch}")
    expect(page.get_by_role("link", name="Failures 2")).to_be_visible()
    assert changed == [batch]


def test_an_answer_that_is_older_than_an_event_does_not_replace_it(
    page: Page, server: Server, tenant: str, tmp_path: Path
) -> None:
    batch = make(server, tenant, tmp_path, "eval")
    page.goto(f"/ui/batches/{batch}/settings")
    listens(page, f"/dashboard/batches/{batch}")
    old: list[tuple[Route, APIResponse]] = []

    def read_and_hold(route: Route) -> None:
        if route.request.method != "GET":
            return route.continue_()
        return old.append((route, route.fetch()))

    page.route(f"**/dashboard/batches/{batch}", read_and_hold)
    page.get_by_label("Priority").fill("5")
    page.get_by_role("button", name="Save").click()
    wait_for("the answer", lambda: page.evaluate("1") == 1 and old)
    work(server, batch, bad=2)
    # The event changes what is shown while the new data is on its way.
    expect(page.get_by_role("link", name="Failures 2")).to_be_visible()
    ((route, response),) = old
    route.fulfill(response=response)
    # The answer has come: a form with the new priority replaces the other one.
    expect(page.locator("form.settings")).to_have_attribute("data-key", re.compile(",5,"))
    expect(page.get_by_role("link", name="Failures 2")).to_be_visible()


def test_a_slow_answer_is_abandoned_when_the_user_goes_on(page: Page) -> None:
    page.route("**/dashboard/files?*", lambda route: None)
    with page.expect_event("requestfailed", lambda request: "/dashboard/files" in request.url):
        with page.expect_request(re.compile("/dashboard/files")):
            page.get_by_role("link", name="Files", exact=True).click()
        page.get_by_role("link", name="Operations").click()
    expect(page.get_by_role("heading", name="Pending approvals")).to_be_visible()


def test_a_hidden_page_closes_its_stream_and_opens_it_again(page: Page) -> None:
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_event("requestfailed", lambda request: EVENTS.search(request.url) is not None):
        page.evaluate(hide, True)
    with page.expect_response(EVENTS) as again:
        page.evaluate(hide, False)
    assert again.value.status == 200


def test_a_refused_stream_says_why(browser: Browser, server: Server, tenant: str) -> None:
    key = server.key(tenant, Role.ADMIN, "ada")
    with ExitStack() as opened, visiting(browser, server.url) as visit:
        clients = [opened.enter_context(server.http(key)) for _ in range(MAX_PER_USER)]
        # Events that nobody refers to would close their stream.
        streams = [opened.enter_context(listening(client)) for client in clients]
        assert {events.next()[0] for events in streams} == {"hello"}
        sign_in(visit.context, server, key)
        page = visit.context.new_page()
        page.goto("/")
        expect(page.locator(".banner")).to_contain_text(re.compile("Close", re.IGNORECASE))
        opened.pop_all().close()
        expect(page.locator(".banner")).to_be_hidden()


def test_a_lost_connection_shows_a_banner_returns_and_catches_up(
    browser: Browser, database_url: str, tenant: str, tmp_path: Path
) -> None:
    site = RestartableSite(database_url, tmp_path, site_config(tmp_path, "http://127.0.0.1:9"), "--no-worker")
    site.start()
    server = server_at(site.url, database_url, tmp_path)
    try:
        with visiting(browser, site.url) as visit:
            page = overview_of(visit.context, server, tenant)
            batch = make(server, tenant, tmp_path, "eval")
            page.goto("/ui/batches")
            expect(page.get_by_role("row").filter(has_text="eval.jsonl")).to_be_visible()
            site.stop()
            expect(page.get_by_text("No connection to the server.")).to_be_visible()
            # It changes while nobody listens.
            work(server, batch, bad=2)
            page.get_by_role("link", name="Files", exact=True).click()
            expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
            page.go_back()
            site.start()
            expect(page.get_by_text("No connection to the server.")).to_be_hidden()
            expect(page.get_by_role("row").filter(has_text="eval.jsonl").locator("a.bad-text")).to_have_text(
                "2"
            )
    finally:
        site.stop()
