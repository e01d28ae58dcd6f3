"""`batchline ui` end to end: one address, one browser, and batches that a worker runs beside it."""

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.support.chromium import visiting
from tests.support.dashboard_site import status_of
from tests.support.processes import batchline, simulated, write_requests
from tests.support.ui_process import displayed


def test_the_address_opens_the_dashboard_once_and_a_file_runs(
    browser: Browser, database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with (
        simulated() as upstream,
        displayed(database_url, tmp_path, "--upstream", upstream.url) as ui,
        visiting(browser, ui.url) as visit,
        visiting(browser, ui.url) as stranger,
    ):
        page = visit.context.new_page()
        page.goto(ui.address)
        expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
        assert page.url == f"{ui.url}/"
        late = stranger.context.new_page()
        late.goto(ui.address)
        expect(late.get_by_text("This address was used already")).to_be_visible()

        page.get_by_role("link", name="Files", exact=True).click()
        file = write_requests(tmp_path / "say.jsonl", 5)
        page.get_by_label("Drop a file here, or choose one").set_input_files(file)
        page.get_by_role("button", name="Create batch of 5 lines").click()
        status_of(page, "In progress")
        done = batchline("worker", "--drain", "--upstream", upstream.url, *location)
        assert done.returncode == 0, done.stderr
        status_of(page, "Completed")
        assert visit.requested_elsewhere(ui.url) == []
