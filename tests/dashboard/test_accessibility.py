"""Every page for everybody: axe finds nothing, the keyboard reaches everything, a phone shows all of it."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from batchline.model import Role
from tests.support.chromium import visiting
from tests.support.dashboard_site import Site, dashboard_site, sign_in
from tests.support.scenes import database
from tests.support.seeded_tenant import SeededTenant, seeded_tenant
from tests.support.serving import Server

WIDE, NARROW = 1280, 390


@pytest.fixture(scope="module")
def site(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        database(server_url, template) as url,
        dashboard_site(url, tmp_path_factory.mktemp("site")) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def server(site: Site) -> Server:
    return site.server


@pytest.fixture(scope="module")
def seeded(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeededTenant]:
    with seeded_tenant(site, "acme", tmp_path_factory.mktemp("files"), scale=0.1) as filled:
        yield filled


@pytest.fixture
def tenant(seeded: SeededTenant) -> str:
    return seeded.name


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]


@pytest.mark.parametrize(("scheme", "width"), [("light", WIDE), ("dark", NARROW)])
def test_every_page_fits_and_axe_finds_no_violation(
    browser: Browser, server: Server, seeded: SeededTenant, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    with visiting(browser, server.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as visit:
        page = visit.context.new_page()
        page.goto("/ui/signin")
        expect(page.get_by_role("heading", name="Sign in to Batchline")).to_be_visible()
        faults = {"sign-in": violations(page)}
        sign_in(visit.context, server, server.key(seeded.name, Role.ADMIN, "ada"))
        for name, address in seeded.pages.items():
            page.goto(address)
            expect(page.locator("main h1")).to_be_visible()
            faults[name] = violations(page)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                faults[name].append("it is wider than the window")
            if page.locator("main [role=alert]").count():
                faults[name].append(page.locator("main [role=alert]").inner_text())
    assert {name: found for name, found in faults.items() if found} == {}


def test_dialogs_pass_axe(page: Page, seeded: SeededTenant) -> None:
    page.goto(seeded.pages["batch"])
    page.get_by_role("button", name="Cancel").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next row")
    assert violations(page) == []


def test_dark_mode_follows_the_system_until_the_user_chooses(page: Page) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    light = background()
    page.emulate_media(color_scheme="dark")
    dark = background()
    assert dark != light
    page.get_by_role("button", name="Light or dark").click()
    assert background() == light
    page.reload()
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
    assert background() == light


def test_a_phone_has_a_bottom_bar_and_cards(page: Page) -> None:
    page.set_viewport_size({"width": NARROW, "height": 844})
    navigation = page.get_by_role("navigation", name="Main")
    box = navigation.bounding_box()
    assert box is not None
    assert (round(box["x"]), round(box["width"]), round(box["y"] + box["height"])) == (0, NARROW, 844)
    navigation.get_by_role("link", name="Batches").click()
    # The overview has tables, too, until the next page is there.
    expect(page.get_by_role("heading", name="Batches", exact=True)).to_be_visible()
    row = page.get_by_role("row").filter(has_text="eval-two-models")
    expect(row).to_have_css("display", "flex")
    expect(page.locator("thead")).to_be_hidden()


def test_the_keyboard_searches_moves_selects_and_opens(page: Page) -> None:
    page.goto("/ui/batches")
    links = page.locator("a.row-link")
    expect(links.first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("translations")
    expect(links).to_have_text(["translations-fr"])
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="translations-fr")).to_be_focused()
    page.keyboard.press("x")
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="translations-fr")).to_be_visible()


def test_the_first_tab_stop_skips_the_navigation(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_charts_show_values_at_the_pointer_and_as_a_table(page: Page, seeded: SeededTenant) -> None:
    for figure in page.locator("figure").all():
        figure.get_by_text("Values as a table").click()
        expect(figure.locator("tbody tr")).to_have_count(60)
    plot = page.locator("figure", has_text="Throughput").locator(".plot")
    plot.hover()
    expect(plot.locator(".tip")).to_contain_text("Completed")
    page.mouse.move(0, 0)
    expect(plot.locator(".tip")).to_be_hidden()
    # A batch of a moment has no rate over time.
    page.goto("/ui/batches?q=hello-world")
    page.get_by_role("link", name="hello-world").click()
    expect(page.get_by_text("There are not enough values for a chart yet.")).to_be_visible()


def test_filters_sort_and_paging_are_in_the_address(page: Page, seeded: SeededTenant) -> None:
    links = page.locator("a.row-link")
    page.goto("/ui/batches?limit=3")
    expect(links).to_have_count(3)
    first = links.all_inner_texts()
    page.get_by_role("link", name="Next").click()
    expect(links.first).not_to_have_text(first[0])
    second = links.all_inner_texts()
    page.reload()
    expect(links).to_have_text(second)
    page.get_by_role("link", name="Previous").click()
    expect(links).to_have_text(first)
    page.go_back()
    expect(links).to_have_text(second)
    page.goto("/ui/batches")
    page.get_by_role("link", name="Paused", exact=True).click()
    expect(links).to_have_text(["vm_restart", "prompt-v2", "translations-fr"])
    page.get_by_role("link", name="Paused", exact=True).click()
    page.get_by_role("columnheader", name="Failed").get_by_role("link").click()
    expect(links.first).to_have_text("support-tickets-march")
    page.goto("/ui/batches")
    page.get_by_role("searchbox").fill("digest-04")
    expect(links).to_have_text(["digest-04"])
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.get_by_role("searchbox").fill("no such batch")
    expect(page.get_by_text("No batch matches")).to_be_visible()
