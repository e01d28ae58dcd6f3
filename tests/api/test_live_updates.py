"""Live updates: what browsers get, whom they are for, when they end, and what they cost."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID

import httpx2
import pytest

from batchline.dashboard.live import MAX_PER_USER
from batchline.governance import keys
from batchline.model import Role, ids
from batchline.store import batches, spans
from batchline.store import keys as stored
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, complete, on, sql, take
from tests.support.page_client import DASHBOARD, PageClient, listening, signed_in
from tests.support.scenes import database
from tests.support.serving import Server, serving
from tests.support.waiting import wait_for


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


def make(browser: PageClient, number: int = 1) -> list[UUID]:
    tenant = browser.session()["tenant"]

    async def scenario(db: Session) -> list[UUID]:
        return [(await a_batch(db, 3, tenant=tenant)).id for _ in range(number)]

    return on(browser.server.database, scenario)


def finish_one(server: Server, batch_id: UUID) -> None:
    async def scenario(db: Session) -> None:
        worker = a_worker()
        await complete(db, worker, await take(db, worker, 1, spans.Scope(batch_id=batch_id)))

    on(server.database, scenario)


def public(batch_id: UUID) -> str:
    return ids.show(ids.BATCH, batch_id)


def test_a_stream_says_hello_and_tells_what_changes(server: Server, browser: PageClient) -> None:
    (batch_id,) = make(browser)
    with listening(browser.http) as events:
        assert events.next()[0] == "hello"
        overview = events.until("overview")
        assert overview["counts"]["open"] == 1
        assert "throughput" not in overview
        finish_one(server, batch_id)
        changed = events.until("batch", id=public(batch_id))
        while changed.get("counts", {}).get("completed") != 1:
            changed = events.until("batch", id=public(batch_id))
        assert "name" not in changed
        (newer,) = make(browser)
        assert events.until("batch", id=public(newer))["name"] == "input.jsonl"
        assert events.until("overview")["counts"]["open"] == 2


def start_action(browser: PageClient, batch_id: UUID) -> str:
    started = browser.send(
        "POST",
        f"{DASHBOARD}/actions",
        json={"action": "pause", "filter": {"ids": [public(batch_id)]}},
    )
    assert started.status_code == 202, started.text
    return str(started.json()["id"])


def test_actions_are_reported_to_those_who_may_see_them(server: Server) -> None:
    tenant = ids.new_id().hex
    with (
        signed_in(server, tenant, name="dora") as admin,
        signed_in(server, tenant, Role.USER, "anna") as anna,
        signed_in(server, tenant, Role.USER, "bert") as bert,
        listening(admin.http) as to_admin,
        listening(anna.http) as to_anna,
        listening(bert.http) as to_bert,
    ):
        for events in (to_admin, to_anna, to_bert):
            events.until("overview")
        (batch_id,) = make(anna)
        action_id = start_action(anna, batch_id)
        assert to_anna.until("action")["id"] == action_id
        running = to_admin.until("action", id=action_id)
        assert (running["state"], running["created_by"], running["done"]) == ("running", "anna", 0)
        assert anna.send("POST", f"{DASHBOARD}/actions/{action_id}/cancel").status_code == 200
        assert to_admin.until("action", state="cancelled") == anna.get(f"actions/{action_id}")
        # Bert is told of the batch, and of no action but his own.
        own = start_action(bert, batch_id)
        assert to_bert.until("action")["id"] == own


def test_an_old_batch_is_reported_if_it_is_watched(server: Server, browser: PageClient) -> None:
    oldest = make(browser)[0]

    async def without_deadline(db: Session) -> None:
        await sql(db, "UPDATE batchline.batches SET expires_at = NULL WHERE id = %(batch)s", batch=oldest)

    on(server.database, without_deadline)
    make(browser, 51)
    with listening(browser.http, watch=public(oldest)) as events:
        events.until("overview")
        on(server.database, lambda db: batches.close(db, oldest, "pause"))
        assert events.until("batch", id=public(oldest))["status"] == "paused"


def test_the_first_poll_tells_the_watched_batches(server: Server, browser: PageClient) -> None:
    """The page may have read a batch before that poll, and the batch may have changed in between."""
    (batch_id,) = make(browser)
    with listening(browser.http, watch=public(batch_id)) as events:
        assert events.until("batch")["id"] == public(batch_id)


def test_nobody_is_told_of_another_tenants_batches_or_anothers_operations(server: Server) -> None:
    tenant = ids.new_id().hex
    with signed_in(server, ids.new_id().hex) as other, signed_in(server, tenant, Role.USER, "bert") as bert:
        mine, (theirs,) = make(other), make(bert)

        async def govern(db: Session) -> None:
            await sql(
                db,
                "UPDATE batchline.batches SET submitted_by = 'anna' WHERE id = %(batch)s",
                batch=theirs,
            )

        on(server.database, govern)
        watch = ",".join(map(public, (theirs, *mine)))
        with listening(other.http, watch=watch) as others, listening(bert.http, watch=watch) as berts:
            others.until("overview")
            assert berts.until("overview")["counts"]["open"] == 0
            finish_one(server, theirs)
            finish_one(server, mine[0])
            (berts_own,) = make(bert)
            reported = berts.next()
            while reported[0] != "batch":
                reported = berts.next()
            assert reported[1]["id"] == public(berts_own)
            seen = others.next()
            while seen[0] != "batch":
                seen = others.next()
            assert seen[1]["id"] == public(mine[0])


def ends(events: object) -> bool:
    """Read a stream until it ends."""
    try:
        while True:
            events.next()  # type: ignore[attr-defined]
    except StopIteration:
        return True


def test_a_stream_ends_with_its_session_and_with_its_key(server: Server) -> None:
    tenant = ids.new_id().hex

    async def sign_out(db: Session) -> None:
        await sql(db, "DELETE FROM batchline.browser_sessions")

    async def revoke(db: Session) -> None:
        for key in await stored.list_all(db, tenant):
            await keys.revoke(db, key.id, "admin")

    for end in (sign_out, revoke):
        with signed_in(server, tenant) as browser, listening(browser.http) as events:
            events.until("overview")
            on(server.database, end)
            assert ends(events)
    key = server.key(tenant)
    with server.http(key) as http, listening(http) as events:
        events.until("overview")
        on(server.database, revoke)
        assert ends(events)


def test_streams_of_one_user_are_limited(server: Server, browser: PageClient) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                httpx2.Client(base_url=server.url, cookies=dict(browser.http.cookies), timeout=60)
            )
            for _ in range(MAX_PER_USER)
        ]
        # Events that nobody refers to would close their stream.
        streams = [stack.enter_context(listening(http)) for http in clients]
        for events in streams:
            events.until("overview")
        answer = browser.http.get(f"{DASHBOARD}/events")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_streams")
    # They have been closed.
    wait_for("a free stream", lambda: _opens(browser))


def _opens(browser: PageClient) -> bool:
    with browser.http.stream("GET", f"{DASHBOARD}/events") as answer:
        return answer.status_code == 200


def test_a_server_that_stops_does_not_wait_for_its_streams(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(database(server_url, template))
        browser = None
        with serving(url, tmp_path_factory.mktemp("stopping")) as server:
            browser = stack.enter_context(signed_in(server, "acme"))
            events = stack.enter_context(listening(browser.http))
            events.until("overview")
        # The context has waited for its end: that would have taken half a minute.
        assert ends(events)
