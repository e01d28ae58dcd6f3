"""What users do with the dashboard, from the first upload to the bulk action, with a real worker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from batchline.model import Role, ids
from tests.support.chromium import visiting
from tests.support.dashboard_site import (
    CHAT,
    Site,
    caller,
    confirm,
    created,
    dashboard_site,
    overview_of,
    status_of,
)
from tests.support.scenes import database
from tests.support.serving import Server
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import receiving
from tests.support.worded_upstream import WordedUpstream


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


@pytest.fixture
def upstream(site: Site) -> Iterator[WordedUpstream]:
    yield site.upstream
    # What a test that failed has left behind would keep the worker busy.
    site.upstream.forget()


@pytest.fixture
def word() -> str:
    """In the requests of one test only."""
    return f"w{ids.new_id().hex[-12:]}"


def written(path: Path, questions: list[str], model: str = "gpt-5-mini") -> Path:
    lines = (
        {
            "custom_id": f"q-{number}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": model, "messages": [{"role": "user", "content": question}]},
        }
        for number, question in enumerate(questions, 1)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def upload(page: Page, path: Path) -> None:
    page.goto("/ui/files")
    page.get_by_label("Drop a file here, or choose one").set_input_files(path)
    expect(page.get_by_role("heading", name=path.name, exact=True)).to_be_visible()


def submitted(server: Server, tenant: str, count: int = 4, **more: Any) -> str:
    items = [{"vm": f"vm-{number}", "namespace": "staging"} for number in range(1, count + 1)]
    with caller(server, tenant, "grace") as grace:
        answer = grace.post("/operations/vm_restart/batches", json={"items": items, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["batch_id"])


def audited(server: Server, tenant: str) -> list[dict[str, Any]]:
    with caller(server, tenant, "auditor", Role.ADMIN) as admin:
        return list(admin.get("/dashboard/audit").json()["data"])


def listed(server: Server, tenant: str, **filters: str) -> list[dict[str, Any]]:
    with caller(server, tenant, "reader", Role.ADMIN) as admin:
        return list(admin.get("/dashboard/batches", params=filters).json()["data"])


def drop(page: Page, name: str, content: str) -> None:
    page.locator(".drop").evaluate(
        """(zone, [name, content]) => {
          const data = new DataTransfer();
          data.items.add(new File([content], name));
          const options = { dataTransfer: data, bubbles: true, cancelable: true };
          zone.dispatchEvent(new DragEvent("dragover", options));
          zone.dispatchEvent(new DragEvent("drop", options));
        }""",
        [name, content],
    )


def test_a_new_user_drops_a_file_finds_why_three_lines_failed_and_retries_them(
    page: Page, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    questions = [f"{word} question {number}" for number in range(1, 18)]
    questions += [f"{word} hot {number}" for number in range(3)]
    upstream.refuse(f"{word} hot", 422, "`temperature` must be between 0 and 2.")
    upstream.hold(word)
    page.get_by_role("link", name="Files", exact=True).click()
    drop(page, "questions.jsonl", written(tmp_path / "questions.jsonl", questions).read_text())
    expect(page.get_by_role("heading", name="questions.jsonl")).to_be_visible()
    expect(page.get_by_text("Valid")).to_be_visible()

    page.get_by_label("Name").fill("first questions")
    page.get_by_role("button", name="Create batch of 20 lines").click()
    expect(page.get_by_role("heading", name="first questions", exact=True)).to_be_visible()
    status_of(page, "In progress")
    expect(page.locator(".batch-head .legend")).to_contain_text("In flight20")
    upstream.release(word)
    status_of(page, "Some failed")
    expect(page.locator(".batch-head .legend")).to_contain_text("Completed17")

    page.get_by_role("link", name="Failures 3").click()
    # Numbers vary from line to line, so a cause leaves them out.
    expect(page.get_by_text("`temperature` must be between N and N")).to_be_visible()
    page.get_by_role("link", name="Show 3 lines").click()
    expect(page.locator("tbody a.row-link")).to_have_text(["q-18", "q-19", "q-20"])
    page.get_by_role("link", name="q-18").click()
    expect(page.get_by_role("region", name="Request")).to_contain_text(f"{word} hot 0")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("must be between 0 and 2")
    expect(page.locator(".attempts li")).to_have_count(1)
    page.go_back()
    page.get_by_role("link", name="Failures 3").click()

    upstream.accept(f"{word} hot")
    upstream.hold(word)
    page.get_by_role("button", name="Retry this group").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 lines failed with")
    confirm(page, "Retry 3 lines")
    status_of(page, "In progress")
    upstream.release(word)
    status_of(page, "Completed")
    expect(page.locator(".batch-head .legend")).to_contain_text("Completed20")
    assert upstream.count(f"{word} question") == 17
    assert upstream.count(f"{word} hot") == 6


def test_problems_of_a_file_are_shown_at_their_lines_and_no_batch_can_be_created(page: Page) -> None:
    page.goto("/ui/files")
    good = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": []}}
    drop(page, "bad.jsonl", f"{json.dumps(good)}\nnot json\n{json.dumps(good)}\n")
    expect(page.get_by_role("heading", name="bad.jsonl")).to_be_visible()
    table = page.get_by_role("table", name="Problems by line")
    expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"^2.*not json", re.DOTALL))
    expect(table.get_by_role("row").nth(2)).to_contain_text(re.compile(r'^3.*"custom_id": "a"', re.DOTALL))
    expect(page.get_by_role("button", name="Create batch")).to_have_count(0)
    page.get_by_role("link", name="Files", exact=True).first.click()
    expect(page.get_by_role("row").filter(has_text="bad.jsonl")).to_contain_text("2 problems")


def test_a_line_can_be_tried_before_the_batch(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    upload(page, written(tmp_path / "try.jsonl", [f"{word} one", f"{word} two"]))
    request = page.get_by_label("Request")
    expect(request).to_have_value(re.compile(f"{word} one"))
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Status 200")).to_be_visible()
    expect(page.get_by_role("region", name="Answer")).to_contain_text(f"You said: {word} one")

    upstream.refuse(f"{word} hot", 422, "too hot")
    request.fill(json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{word} hot"}]}))
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Status 422")).to_be_visible()
    expect(page.get_by_role("region", name="Answer")).to_contain_text("too hot")

    request.fill('{"model": ')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("The request is not valid JSON")).to_be_visible()
    request.fill("{}")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("model")
    assert upstream.count(word) == 2
    assert [each["action"] for each in audited(server, tenant)].count("playground.requested") == 2


def test_a_request_typed_for_one_file_does_not_appear_at_another(
    page: Page, word: str, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        upload(page, written(tmp_path / f"{name}.jsonl", [f"{word} {name}"]))
    page.get_by_role("link", name="Files", exact=True).first.click()
    page.get_by_role("link", name="first.jsonl").click()
    expect(page.get_by_label("Request")).to_have_value(re.compile(f"{word} first"))
    page.get_by_label("Request").fill("{}")
    page.get_by_role("link", name="Files", exact=True).first.click()
    page.get_by_role("link", name="second.jsonl").click()
    expect(page.get_by_label("Request")).to_have_value(re.compile(f"{word} second"))


def test_cancel_says_what_will_not_run(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    upstream.hold(word)
    file = written(tmp_path / "long.jsonl", [f"{word} {number}" for number in range(500)])
    batch = created(server, tenant, file, extra_body={"steps": "5,100%"})
    wait_for("the first step", lambda: upstream.count(word) == 5)
    page.goto(f"/ui/batches/{batch}")
    expect(page.locator(".batch-head .legend")).to_contain_text("In flight5")
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("495 lines have not started and will not run. 5 in flight will finish.")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    status_of(page, "In progress")

    page.get_by_role("button", name="Cancel").click()
    confirm(page, "Cancel batch")
    expect(page.get_by_role("status").filter(has_text="Cancelled: long.jsonl")).to_be_visible()
    status_of(page, "Cancelling")
    upstream.release(word)
    status_of(page, "Cancelled")
    expect(page.locator(".batch-head .legend")).to_contain_text("Cancelled495")
    assert upstream.count(word) == 5


def test_a_batch_is_paused_changed_and_resumed(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    upstream.hold(word)
    file = written(tmp_path / "run.jsonl", [f"{word} {number}" for number in range(40)])
    batch = created(server, tenant, file, extra_body={"steps": "2,100%"})
    wait_for("the first step", lambda: upstream.count(word) == 2)
    page.goto(f"/ui/batches/{batch}/settings")
    page.get_by_label("Concurrency").fill("200000")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Settings saved.")).to_have_count(0)
    assert page.get_by_label("Concurrency").evaluate("field => field.validity.rangeOverflow")
    page.get_by_label("Concurrency").fill("3")
    page.get_by_label("Priority").fill("5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Settings saved.")).to_be_visible()

    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 in flight will finish. 38 lines will wait")
    confirm(page, "Pause")
    status_of(page, "Paused")
    expect(page.get_by_text("by a user.")).to_be_visible()
    upstream.release(word)
    expect(page.locator(".batch-head .legend")).to_contain_text("Completed2")
    # The settings survive a reload of the page.
    page.reload()
    expect(page.get_by_label("Concurrency")).to_have_value("3")
    expect(page.get_by_label("Priority")).to_have_value("5")
    page.get_by_role("button", name="Resume").click()
    confirm(page, "Resume")
    status_of(page, "Completed")
    expect(page.locator(".batch-head .legend")).to_contain_text("Completed40")


def test_an_approver_sees_what_will_happen_and_approves_it(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str
) -> None:
    submitted(server, tenant, 4, reason=f"{word} Kernel update", custom_ids=[f"{word}-{n}" for n in range(4)])
    page.get_by_role("link", name="Operations").click()
    approval = page.locator(".approval")
    expect(approval).to_contain_text(f"{word} Kernel update")
    expect(approval).to_contain_text("4 operations · by grace")
    approval.get_by_text("First 4 of 4").click()
    expect(approval.get_by_role("region", name=f"{word}-0")).to_contain_text('"namespace": "staging"')
    approval.get_by_role("button", name="Approve").click()
    page.get_by_label("Reason").fill("Agreed.")
    confirm(page, "Approve 4 operations")
    expect(page.get_by_text("No pending approvals")).to_be_visible()
    page.get_by_role("link", name="vm_restart").click()
    status_of(page, "Completed")
    expect(page.locator(".batch-head .legend")).to_contain_text("Completed4")
    (decided,) = (each for each in audited(server, tenant) if each["action"] == "batch.approved")
    assert (decided["actor"], decided["detail"]["reason"]) == ("ada", "Agreed.")
    assert re.fullmatch(r"\S{16,}", decided["detail"]["content_digest"])


def test_a_batch_that_changed_after_the_review_is_not_approved(
    page: Page, server: Server, tenant: str
) -> None:
    batch = submitted(server, tenant, 2, hold=True)
    page.get_by_role("link", name="Operations").click()
    page.locator(".approval").get_by_role("button", name="Approve").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    with caller(server, tenant, "grace") as grace:
        answer = grace.post(f"/batches/{batch}/append", json={"items": [{"vm": "vm-9"}]})
        assert answer.is_success, answer.text
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Review it again")


def test_a_rejection_needs_a_reason(page: Page, server: Server, tenant: str) -> None:
    batch = submitted(server, tenant, 3)
    page.goto("/ui/operations")
    page.get_by_role("button", name="Reject").click()
    page.get_by_role("dialog").get_by_role("button", name="Reject 3 operations").click()
    assert page.get_by_label("Reason").evaluate("field => field.validity.valueMissing")
    page.get_by_label("Reason").fill("Not during the sale.")
    confirm(page, "Reject 3 operations")
    expect(page.get_by_text("No pending approvals")).to_be_visible()
    page.goto(f"/ui/batches/{batch}")
    expect(page.locator(".batch-head .legend")).to_contain_text("Cancelled3")


def test_users_may_not_decide(browser: Browser, server: Server, tenant: str) -> None:
    submitted(server, tenant)
    with visiting(browser, server.url) as visit:
        page = overview_of(visit.context, server, tenant, Role.USER, "grace")
        page.get_by_role("link", name="Operations").click()
        expect(page.get_by_text("You may not decide on this batch.")).to_be_visible()
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        page.get_by_role("link", name="Admin").click()
        expect(page.get_by_role("navigation", name="Admin").get_by_role("link")).to_have_text(["Webhooks"])


def test_a_run_in_steps_that_stops_says_why_and_goes_on(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    upstream.refuse(f"{word} 2", 400, "bad prompt")
    file = written(tmp_path / "steps.jsonl", [f"{word} {number}" for number in range(1, 31)])
    batch = created(server, tenant, file, extra_body={"steps": "1,2,4,..."})
    page.goto(f"/ui/batches/{batch}")
    status_of(page, "Paused")
    expect(page.get_by_text("because too many lines failed.")).to_be_visible()
    expect(page.get_by_text("Step 2: 3 of 30 lines released.")).to_be_visible()
    expect(page.locator(".steps")).to_contain_text("1,2,4,...")
    assert upstream.count(word) == 3
    upstream.accept(f"{word} 2")
    page.get_by_role("button", name="Resume").click()
    confirm(page, "Resume")
    status_of(page, "Some failed")
    expect(page.locator(".batch-head .legend")).to_contain_text("Completed29")


def test_the_output_can_be_previewed_and_downloaded(
    page: Page, server: Server, tenant: str, word: str, tmp_path: Path
) -> None:
    batch = created(server, tenant, written(tmp_path / "out.jsonl", [f"{word} {n}" for n in range(1, 13)]))
    page.goto(f"/ui/batches/{batch}/output")
    status_of(page, "Completed")
    page.get_by_role("button", name="Show the first 10 lines").click()
    expect(page.get_by_role("region", name="Line 10")).to_contain_text(f"You said: {word}")
    with page.expect_download() as download:
        page.locator(".downloads").get_by_role("link", name="Output").click()
    assert download.value.suggested_filename.endswith("_output.jsonl")
    assert len(Path(download.value.path()).read_text().splitlines()) == 12
    file = page.evaluate("document.querySelector('.downloads a').getAttribute('href')").split("/")[3]
    page.goto(f"/ui/files/{file}")
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    expect(page.get_by_role("button", name="Create batch")).to_have_count(0)


def test_a_bulk_action_on_all_matching_states_its_numbers_and_shows_its_progress(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    upstream.hold(word)
    file = written(tmp_path / "some.jsonl", [f"{word} {number}" for number in range(10)])
    for _ in range(3):
        created(server, tenant, file, extra_body={"steps": "2,100%"})
    wait_for("the first steps", lambda: upstream.count(word) == 6)
    page.goto("/ui/batches?status=in_progress")
    page.get_by_role("button", name="Select all 3 matching").click()
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 3 batches?")
    expect(dialog).to_contain_text("24 lines have not started and will not run. 6 in flight will finish.")
    expect(dialog.locator(".sample li")).to_have_text(["some.jsonl"] * 3)
    confirm(page, "Cancel 3 batches")
    expect(page.get_by_role("heading", name="Cancel 3 batches")).to_be_visible()
    expect(page.get_by_text("3 of 3 batches done")).to_be_visible()
    status_of(page, "Completed")
    upstream.release(word)
    page.goto("/ui/actions")
    row = page.get_by_role("row").filter(has_text="Cancel 3 batches")
    expect(row).to_contain_text("ada")
    # A list that is open gets no rows of its own accord.
    wait_for("the end of the batches", lambda: len(listed(server, tenant, status="cancelled")) == 3)
    page.goto("/ui/batches?status=cancelled")
    expect(page.locator("a.row-link")).to_have_count(3)
    assert [each["action"] for each in audited(server, tenant)].count("batch.cancelled") == 3


def test_a_bulk_action_on_ticked_rows_concerns_only_these(
    page: Page, server: Server, tenant: str, upstream: WordedUpstream, word: str, tmp_path: Path
) -> None:
    upstream.hold(word)
    for name in ("one", "two", "three"):
        created(server, tenant, written(tmp_path / f"{name}.jsonl", [f"{word} {name}"]))
    page.goto("/ui/batches")
    for name in ("one.jsonl", "three.jsonl"):
        page.get_by_role("row").filter(has_text=name).get_by_role("checkbox").check()
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.get_by_role("button", name="Priority").click()
    page.get_by_role("spinbutton").fill("7")
    confirm(page, "Priority 2 batches")
    expect(page.get_by_role("heading", name="Priority 7: 2 batches")).to_be_visible()
    expect(page.get_by_text("2 of 2 batches done")).to_be_visible()
    page.goto("/ui/batches")
    expect(page.get_by_role("row").filter(has_text="priority 7")).to_have_count(2)
    expect(page.get_by_role("row").filter(has_text="two.jsonl")).not_to_contain_text("priority")
    upstream.release(word)


def test_deliveries_of_a_webhook_are_listed(
    page: Page, server: Server, tenant: str, word: str, tmp_path: Path
) -> None:
    with receiving() as receiver, server.http(server.key(tenant)) as http:
        answer = http.post(
            "/v1/webhook_endpoints",
            json={"name": "chat", "url": receiver.url, "event_types": ["batch.completed"]},
        )
        assert answer.is_success, answer.text
        created(server, tenant, written(tmp_path / "hook.jsonl", [word]))
        page.goto("/ui/admin/webhooks")
        expect(page.get_by_role("heading", name="Deliveries to chat")).to_be_visible()
        wait_for("the delivery", lambda: receiver.received)

        def delivered() -> bool:
            (hook,) = http.get("/v1/webhook_endpoints").json()["data"]
            found = http.get(f"/v1/webhook_endpoints/{hook['id']}/deliveries").json()["data"]
            return [each["status"] for each in found] == ["delivered"]

        wait_for("the record of the delivery", delivered)
    page.reload()
    row = page.get_by_role("table", name="Deliveries").get_by_role("row").nth(1)
    expect(row).to_contain_text("batch.completed")
    expect(row).to_contain_text("Delivered")


def test_an_admin_exempts_a_user_and_ends_it(page: Page) -> None:
    page.goto("/ui/admin/exemptions")
    page.get_by_role("button", name="Exempt a user").click()
    page.get_by_role("textbox", name="User").fill("night-job")
    page.get_by_label("Reason").fill("Backfill")
    confirm(page, "Exempt")
    row = page.get_by_role("row").filter(has_text="night-job")
    expect(row).to_contain_text("Active")
    row.get_by_role("button", name="End").click()
    confirm(page, "End exemption")
    expect(page.get_by_text("No exemptions")).to_be_visible()


def test_an_admin_changes_the_limits_of_a_user(page: Page, server: Server, tenant: str) -> None:
    submitted(server, tenant, 2)
    page.goto("/ui/admin/limits")
    row = page.get_by_role("row").filter(has_text="grace")
    row.get_by_role("button", name="Change").click()
    page.get_by_label("Pending items").fill("5000")
    page.get_by_label("Reason").fill("Migration")
    confirm(page, "Save limits")
    expect(row).to_contain_text("2 of 5,000")


def test_keys_and_the_audit_log_can_be_searched(page: Page, server: Server, tenant: str) -> None:
    submitted(server, tenant, reason="First")
    batch = submitted(server, tenant, reason="Second")
    page.goto("/ui/admin/keys")
    expect(page.get_by_role("row").filter(has_text="ada")).to_contain_text("admin")
    page.goto("/ui/admin/audit")
    rows = page.locator("tbody tr")
    page.get_by_label("Action", exact=True).fill("batch.submitted")
    expect(rows).to_have_count(2)
    page.get_by_role("searchbox").fill(batch)
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Second")
    page.goto("/ui/admin/maintenance")
    expect(page.get_by_role("heading", name="Admin")).to_be_visible()
