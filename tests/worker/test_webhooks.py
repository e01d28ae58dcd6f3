"""Webhooks: every event reaches who asked for it, whatever crashes; nobody is reached who must not be."""

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import psycopg
import pytest

from batchline.model import DEFAULT_TENANT, EVENTS
from batchline.model.ids import BATCH, EVENT, new_id, show
from batchline.store import audit, maintenance, webhooks
from batchline.store.session import Session, run
from batchline.store.statements import statement
from batchline.store.webhooks import DeliveryAttempt, Message, Taken, Webhook
from batchline.webhooks import signing as words
from batchline.webhooks.sender import Sender
from batchline.worker.outbox import ABANDON_AFTER, LEASE, Outbox
from tests.support.builders import on, sql
from tests.support.processes import batchline, kill, simulated, working, write_requests
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Received, receiving
from tests.support.webhooks import ALLOWED, an_ended_batch, outbox, settled

DELIVERED = DeliveryAttempt(delivered=True, status=200)
REFUSED = DeliveryAttempt(delivered=False, status=500, error="the receiver answered 500")
# What a change says of itself in the audit log.
TESTED = audit.AuditEvent(DEFAULT_TENANT, "test", "webhook.tested")
CLIENT = openai.OpenAI(api_key="none")
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def a_webhook(
    db: Session,
    url: str = "https://receiver.example/hook",
    *,
    tenant: str = DEFAULT_TENANT,
    events: Sequence[str] = EVENTS,
    secret: str | None = None,
) -> Webhook:
    made = await webhooks.add(
        db,
        new_id(),
        tenant,
        name="receiver",
        url=url,
        events=events,
        secret=secret or words.new_secret(),
        maximum=100,
        event=TESTED,
    )
    assert made is not None
    return made


async def tell(db: Session) -> int:
    """Fan every event out; how many deliveries that made."""
    reported = 0
    while (event := await maintenance.take_event(db)) is not None:
        reported += await webhooks.fan_out(db, event.id)
        await maintenance.event_delivered(db, event.id)
    return reported


async def take(db: Session) -> Taken | None:
    return await webhooks.take(db, lease=LEASE)


async def must_take(db: Session) -> tuple[Taken, Message]:
    taken = await take(db)
    assert taken is not None, "there should be a webhook to send to"
    assert taken.message is not None, "there should be a message to send"
    return taken, taken.message


async def settle(
    db: Session, taken: Taken, attempt: DeliveryAttempt = DELIVERED, *, delay: float = 0.0, rest: float = 0.0
) -> bool | None:
    return await webhooks.settle(db, taken, attempt, delay=delay, rest=rest, abandon=ABANDON_AFTER)


async def hours_pass(db: Session, hours: float) -> None:
    """As if everything had happened so many hours earlier."""
    ago = timedelta(hours=hours)
    await sql(
        db,
        "UPDATE batchline.webhooks SET rests_until = rests_until - %(ago)s, due_at = due_at - %(ago)s,"
        " previous_until = previous_until - %(ago)s",
        ago=ago,
    )
    await sql(
        db,
        "UPDATE batchline.deliveries SET created_at = created_at - %(ago)s,"
        " available_at = available_at - %(ago)s",
        ago=ago,
    )


async def reported_of(db: Session, webhook: Webhook) -> list[tuple[object, ...]]:
    """(attempts, delivered, failed) of each delivery, oldest first."""
    rows = await webhooks.deliveries(db, webhook.id, limit=100)
    return [(row.attempts, row.delivered_at is not None, row.failed_at is not None) for row in rows[::-1]]


# Who is told


async def test_an_event_goes_to_the_webhooks_of_its_tenant_that_subscribe_to_it(db: Session) -> None:
    ours = await a_webhook(db)
    deaf = await a_webhook(db, events=["batch.failed", "batch.expired"])
    theirs = await a_webhook(db, tenant="other")
    await an_ended_batch(db)
    assert await tell(db) == 1
    assert [await reported_of(db, hook) for hook in (ours, deaf, theirs)] == [[(0, False, False)], [], []]


async def test_an_event_that_is_fanned_out_twice_is_delivered_once(db: Session) -> None:
    webhook = await a_webhook(db)
    await an_ended_batch(db)
    ((event,),) = await sql(db, "SELECT id FROM batchline.outbox")
    assert [await webhooks.fan_out(db, event), await webhooks.fan_out(db, event)] == [1, 0]
    taken, _ = await must_take(db)
    await settle(db, taken)
    assert await webhooks.fan_out(db, event) == 0
    assert await take(db) is None
    assert await reported_of(db, webhook) == [(1, True, False)]


async def test_the_number_of_webhooks_per_tenant_is_limited(db: Session) -> None:
    async def add(tenant: str) -> Webhook | None:
        return await webhooks.add(
            db,
            new_id(),
            tenant,
            name="",
            url="https://x.example",
            events=[],
            secret="",
            maximum=2,
            event=TESTED,
        )

    assert [await add("a") is not None for _ in range(3)] == [True, True, False]
    assert await add("b") is not None


async def test_a_deleted_webhook_takes_its_deliveries_along(db: Session) -> None:
    webhook = await a_webhook(db)
    await an_ended_batch(db)
    await tell(db)
    taken, _ = await must_take(db)
    assert not await webhooks.delete(db, "other", webhook.id, TESTED)
    assert await webhooks.delete(db, DEFAULT_TENANT, webhook.id, TESTED)
    assert await settle(db, taken) is None
    assert await sql(db, "SELECT count(*) FROM batchline.deliveries") == [(0,)]


# One at a time, and nothing is lost


async def test_a_webhook_is_sent_to_one_message_at_a_time_and_others_meanwhile(db: Session) -> None:
    await a_webhook(db)
    for _ in range(3):
        await an_ended_batch(db)
    other = await a_webhook(db)
    await tell(db)
    first, _ = await must_take(db)
    second, _ = await must_take(db)
    assert first.webhook_id != second.webhook_id
    assert other.id in (first.webhook_id, second.webhook_id)
    assert await take(db) is None
    await settle(db, first)
    third, _ = await must_take(db)
    assert third.webhook_id == first.webhook_id


async def test_messages_are_sent_in_the_order_of_their_events(db: Session) -> None:
    await a_webhook(db)
    ended = [await an_ended_batch(db) for _ in range(4)]
    await tell(db)
    said = []
    while (taken := await take(db)) is not None:
        assert taken.message is not None
        said.append(taken.message.batch_id)
        await settle(db, taken)
    assert said == [batch.id for batch in ended]


async def test_what_a_killed_worker_was_sending_is_sent_again_under_the_same_id(db: Session) -> None:
    await a_webhook(db)
    await an_ended_batch(db)
    await tell(db)
    lost, message = await must_take(db)
    assert await take(db) is None
    await hours_pass(db, 1)
    again, same = await must_take(db)
    assert (same.event_id, same.attempts) == (message.event_id, 2)
    assert await settle(db, lost) is None, "whoever lost the lease has no say any more"
    assert await settle(db, again) is False
    assert await take(db) is None


async def test_an_event_that_comes_while_another_is_sent_is_sent_next(db: Session) -> None:
    await a_webhook(db)
    await an_ended_batch(db)
    await tell(db)
    taken, message = await must_take(db)
    await an_ended_batch(db)
    await tell(db)
    assert await take(db) is None
    await settle(db, taken)
    _, following = await must_take(db)
    assert following.event_id != message.event_id


async def test_an_event_that_commits_while_a_delivery_waits_to_be_settled_is_not_lost(
    database_url: str, db: Session
) -> None:
    """The settle's snapshot is older than the delivery; it must look again once it has the lock."""
    await a_webhook(db)
    await an_ended_batch(db)
    await tell(db)
    taken, _ = await must_take(db)
    await an_ended_batch(db)
    ((event,),) = await sql(db, "SELECT id FROM batchline.outbox WHERE delivered_at IS NULL")
    async with Session(database_url, "fan out") as other, Session(database_url, "watch") as watch:
        async with other.transaction() as connection:
            await run(connection, statement("fan_out"), {"event": event})
            settling = asyncio.create_task(settle(db, taken))
            while not await sql(watch, WAITING):
                assert not settling.done(), "the settle should wait for the webhook's row"
        assert await settling is False
    _, message = await must_take(db)
    assert message.event_id == event


async def test_a_webhook_that_is_taken_before_its_delivery_is_seen_gets_it_after_all(db: Session) -> None:
    webhook = await a_webhook(db)
    await sql(db, "UPDATE batchline.webhooks SET due_at = now()")
    taken = await take(db)
    assert taken is not None
    assert taken.message is None
    await an_ended_batch(db)
    await tell(db)
    await settle(db, taken, DeliveryAttempt(delivered=False))
    await must_take(db)
    assert await sql(db, "SELECT failures FROM batchline.webhooks") == [(0,)]
    assert await reported_of(db, webhook) == [(1, False, False)]


# Failing


async def test_a_refused_message_waits_and_does_not_keep_others_back(db: Session) -> None:
    webhook = await a_webhook(db)
    first, second = await an_ended_batch(db), await an_ended_batch(db)
    await tell(db)
    taken, message = await must_take(db)
    assert message.batch_id == first.id
    await settle(db, taken, REFUSED, delay=3600)
    taken, message = await must_take(db)
    assert message.batch_id == second.id
    await settle(db, taken)
    assert await take(db) is None
    await hours_pass(db, 1.1)
    taken, message = await must_take(db)
    assert (message.batch_id, message.attempts) == (first.id, 2)
    await settle(db, taken)
    assert await reported_of(db, webhook) == [(2, True, False), (1, True, False)]


async def test_a_receiver_that_fails_is_left_in_peace_with_all_its_messages(db: Session) -> None:
    await a_webhook(db)
    for _ in range(2):
        await an_ended_batch(db)
    await tell(db)
    taken, _ = await must_take(db)
    await settle(db, taken, REFUSED, delay=5, rest=600)
    assert await take(db) is None
    await an_ended_batch(db)
    await tell(db)
    assert await take(db) is None, "news must not end the rest"
    await hours_pass(db, 0.2)
    taken, _ = await must_take(db)
    assert taken.failures == 1
    await settle(db, taken)
    taken, _ = await must_take(db)
    assert taken.failures == 0


async def test_a_message_is_abandoned_after_a_day(db: Session) -> None:
    webhook = await a_webhook(db)
    for _ in range(3):
        await an_ended_batch(db)
    await tell(db)
    taken, _ = await must_take(db)
    assert await settle(db, taken, REFUSED, delay=5) is False
    await hours_pass(db, 25)
    await an_ended_batch(db)
    await tell(db)
    taken, _ = await must_take(db)
    assert await settle(db, taken, REFUSED, delay=5) is True
    assert [failed for *_, failed in await reported_of(db, webhook)] == [True, True, True, False]
    rows = await webhooks.deliveries(db, webhook.id, limit=10)
    assert {row.last_error for row in rows if row.failed_at} <= {
        "the receiver answered 500",
        "the receiver could not be reached in time",
    }
    await must_take(db)


async def test_old_deliveries_go_and_open_ones_stay(db: Session) -> None:
    webhook = await a_webhook(db)
    for _ in range(2):
        await an_ended_batch(db)
    await tell(db)
    taken, _ = await must_take(db)
    await settle(db, taken)
    assert await webhooks.drop_old(db, 3600) == 0
    await hours_pass(db, 2)
    assert await webhooks.drop_old(db, 3600) == 1
    assert await reported_of(db, webhook) == [(0, False, False)]


# What is said


async def test_the_official_client_accepts_what_is_sent(db: Session) -> None:
    with receiving() as receiver:
        secret = words.new_secret()
        webhook = await a_webhook(db, receiver.url, secret=secret)
        batch = await an_ended_batch(db)
        async with outbox(db) as working:
            working.wake()
            (got,) = await asyncio.to_thread(receiver.wait_for, 1)
            await settled(working)
        event = CLIENT.webhooks.unwrap(got.body, got.headers, secret=secret)
        assert event.type == "batch.completed"
        assert event.data.id == show(BATCH, batch.id)
        assert got.headers["webhook-id"] == event.id
        ((event_id, occurred),) = await sql(db, "SELECT id, created_at FROM batchline.outbox")
        assert got.event == {
            "id": show(EVENT, event_id),
            "object": "event",
            "type": "batch.completed",
            "created_at": int(occurred.timestamp()),
            "data": {"id": show(BATCH, batch.id)},
        }
        with pytest.raises(openai.InvalidWebhookSignatureError):
            CLIENT.webhooks.unwrap(got.body, got.headers, secret=words.new_secret())
        with pytest.raises(openai.InvalidWebhookSignatureError):
            CLIENT.webhooks.unwrap(got.body + b" ", got.headers, secret=secret)
        assert await reported_of(db, webhook) == [(1, True, False)]


def test_a_message_keeps_its_id_over_attempts_and_gets_the_time_of_each() -> None:
    message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
    secret, content = words.new_secret(), words.body(message)
    now = datetime.now(UTC)
    earlier = words.signed_headers(message, content, [secret], now - timedelta(seconds=100))
    later = words.signed_headers(message, content, [secret], now)
    assert earlier["webhook-id"] == later["webhook-id"] == show(EVENT, message.event_id)
    assert int(later["webhook-timestamp"]) - int(earlier["webhook-timestamp"]) == 100
    for headers in (earlier, later):
        CLIENT.webhooks.verify_signature(content, headers, secret=secret)


async def test_after_a_rotation_both_secrets_sign_for_a_day_if_so_wished(db: Session) -> None:
    old, new = words.new_secret(), words.new_secret()
    webhook = await a_webhook(db, secret=old)
    assert await webhooks.rotate(db, "other", webhook.id, new, event=TESTED) is None
    await webhooks.rotate(db, DEFAULT_TENANT, webhook.id, new, event=TESTED, keep=words.KEEP_PREVIOUS)
    both = await webhooks.secrets(db, DEFAULT_TENANT, webhook.id)
    assert both == (new, old)
    message = Message(new_id(), new_id(), "batch.failed", datetime.now(UTC), 1)
    content = words.body(message)
    headers = words.signed_headers(message, content, both)
    for secret in both:
        CLIENT.webhooks.verify_signature(content, headers, secret=secret)
    await hours_pass(db, 25)
    assert await webhooks.secrets(db, DEFAULT_TENANT, webhook.id) == (new,)
    await webhooks.rotate(db, DEFAULT_TENANT, webhook.id, old, event=TESTED)
    assert await webhooks.secrets(db, DEFAULT_TENANT, webhook.id) == (old,)
    assert await webhooks.secrets(db, "other", webhook.id) == ()


# Sending


async def test_a_slow_receiver_holds_up_no_other(db: Session) -> None:
    go_on = threading.Event()

    def slow(received: Received) -> tuple[int, dict[str, str]]:
        go_on.wait(60)
        return 200, {}

    with receiving(slow) as first, receiving() as second:
        await a_webhook(db, first.url)
        await a_webhook(db, second.url)
        # Nearly as long as the lease: the slow one must not be sent to again before the others have it all.
        async with outbox(db, timeout=LEASE - 5) as working:
            for _ in range(3):
                await an_ended_batch(db)
            working.wake()
            await asyncio.to_thread(second.wait_for, 3)
            await asyncio.to_thread(first.wait_for, 1)
            assert len(first.received) == 1, "one message at a time"
            go_on.set()
            await asyncio.to_thread(first.wait_for, 3)
            await settled(working)


async def test_a_receiver_that_never_answers_costs_its_time_limit(database_url: str) -> None:
    go_on = threading.Event()

    def hang(received: Received) -> tuple[int, dict[str, str]]:
        go_on.wait(30)
        return 200, {}

    message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
    with receiving(hang) as receiver:
        sender = Sender(allow_private=True, timeout=2.0)
        sent = await sender.send(receiver.url, message, [words.new_secret()])
        go_on.set()
    assert sent.attempt == DeliveryAttempt(delivered=False, error="no complete answer in time")


async def test_a_failure_is_tried_again_soon_and_written_down(db: Session) -> None:
    def refuse_once(received: Received) -> tuple[int, dict[str, str]]:
        return (503 if len(receiver.received) == 1 else 204), {}

    with receiving(refuse_once) as receiver:
        webhook = await a_webhook(db, receiver.url)
        await an_ended_batch(db)
        async with outbox(db) as working:
            working.wake()
            one, two = await asyncio.to_thread(receiver.wait_for, 2)
            await settled(working)
        assert one.headers["webhook-id"] == two.headers["webhook-id"]
        assert one.body == two.body
        (delivery,) = await webhooks.deliveries(db, webhook.id, limit=9)
        assert (delivery.attempts, delivery.last_status, delivery.last_error) == (2, 204, None)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    with receiving() as trap, receiving(lambda _: (status, {"location": trap.url})) as receiver:
        message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
        sent = await Sender(allow_private=True, timeout=60.0).send(
            receiver.url, message, [words.new_secret()]
        )
        assert not sent.attempt.delivered
        assert sent.attempt.error is not None
        assert "redirects are not followed" in sent.attempt.error
        assert trap.received == []


async def test_a_receivers_retry_after_is_obeyed() -> None:
    with receiving(lambda _: (429, {"retry-after": "120"})) as receiver:
        message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
        sent = await Sender(allow_private=True, timeout=60.0).send(
            receiver.url, message, [words.new_secret()]
        )
        assert sent.requested == 120


# By real workers


def test_a_worker_reports_a_batch_as_soon_as_it_has_ended(database_url: str, tmp_path: Path) -> None:
    with receiving() as receiver, simulated() as upstream:
        secret = words.new_secret()
        on(database_url, lambda db: a_webhook(db, receiver.url, secret=secret))
        location = ("--database", database_url, "--data-dir", str(tmp_path))
        # It must not wait for a poll, so there is none.
        no_polls = {"BATCHLINE_WORKER_POLL_MIN": "3600", "BATCHLINE_WORKER_POLL_MAX": "3600"}
        with working(database_url, tmp_path, **ALLOWED, **no_polls):
            inputs = write_requests(tmp_path / "in.jsonl", 3)
            done = batchline("submit", str(inputs), "--upstream", upstream.url, "--json", *location)
            assert done.returncode == 0, done.stderr
            (got,) = receiver.wait_for(1)
        event = CLIENT.webhooks.unwrap(got.body, got.headers, secret=secret)
        assert event.type == "batch.completed"
        assert event.data.id == json.loads(done.stdout)["id"]


def test_a_draining_worker_reports_its_batches_before_it_leaves(database_url: str, tmp_path: Path) -> None:
    with receiving() as receiver, simulated() as upstream:
        on(database_url, lambda db: a_webhook(db, receiver.url))
        location = ("--database", database_url, "--data-dir", str(tmp_path))
        inputs = write_requests(tmp_path / "in.jsonl", 3)
        batchline("submit", str(inputs), "--upstream", upstream.url, *location)
        done = batchline("worker", "--drain", *location, **ALLOWED)
        assert done.returncode == 0, done.stderr
        assert len(receiver.received) == 1
        assert one_row(database_url, "SELECT delivered_at IS NOT NULL FROM batchline.deliveries") == (True,)


def test_what_a_worker_was_sending_when_it_was_killed_is_sent_by_another(
    database_url: str, tmp_path: Path
) -> None:
    go_on = threading.Event()

    def hang_once(received: Received) -> tuple[int, dict[str, str]]:
        if len(receiver.received) == 1:
            go_on.wait(60)
        return 200, {}

    async def an_event(db: Session) -> None:
        await a_webhook(db, receiver.url)
        await an_ended_batch(db)

    with receiving(hang_once) as receiver:
        on(database_url, an_event)
        with working(database_url, tmp_path, **ALLOWED) as first:
            receiver.wait_for(1)
            kill(first)
        on(database_url, lambda db: hours_pass(db, 1))
        with working(database_url, tmp_path, **ALLOWED):
            one, two = receiver.wait_for(2)
            assert one.headers["webhook-id"] == two.headers["webhook-id"]
            wait_for(
                "the delivery to be written down",
                lambda: (
                    one_row(
                        database_url, "SELECT delivered_at IS NOT NULL, attempts FROM batchline.deliveries"
                    )
                    == (True, 2)
                ),
            )
        go_on.set()


def one_row(url: str, query: str) -> tuple[Any, ...]:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return tuple(row)


# Where it may go


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """The name is looked up once. No second answer, as of a name that rebinds, can steer the connection."""
    requested: list[str] = []

    def lookup(host: str, port: int) -> Sequence[str]:
        requested.append(host)
        return ["127.0.0.1"]

    with receiving() as receiver:
        message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
        url = f"http://receiver.invalid:{receiver.port}/hook?a=b"
        sent = await Sender(allow_private=True, timeout=60.0, lookup=lookup).send(
            url, message, [words.new_secret()]
        )
        assert sent.attempt == DELIVERED
        assert requested == ["receiver.invalid"]
        (got,) = receiver.received
        assert (got.path, got.headers["host"]) == ("/hook?a=b", f"receiver.invalid:{receiver.port}")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_is_checked_against_the_name_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "receiver.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            "/CN=receiver.invalid",
            "-addext",
            "subjectAltName=DNS:receiver.invalid",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            "receiver.pem",
            "-out",
            "certificate.pem",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    with certificate.open("a") as both:
        both.write((tmp_path / "certificate.pem").read_text())

    def send(host: str) -> DeliveryAttempt:
        message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
        sender = Sender(allow_private=True, timeout=60.0, lookup=lambda host, port: ["127.0.0.1"])
        url = f"https://{host}:{receiver.port}/hook"
        return asyncio.run(sender.send(url, message, [words.new_secret()])).attempt

    with receiving(certificate=certificate) as receiver:
        assert "UnknownIssuer" in (send("receiver.invalid").error or "")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        assert send("receiver.invalid") == DELIVERED
        assert "not valid for name" in (send("other.invalid").error or "")
        assert len(receiver.received) == 1


async def test_a_proxy_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver, receiving() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        message = Message(new_id(), new_id(), "batch.completed", datetime.now(UTC), 1)
        sent = await Sender(allow_private=True, timeout=60.0).send(
            receiver.url, message, [words.new_secret()]
        )
        assert sent.attempt == DELIVERED
        assert proxy.received == []


async def test_a_private_receiver_gets_nothing_and_the_delivery_says_why(db: Session) -> None:
    with receiving() as receiver:
        webhook = await a_webhook(db, receiver.url)
        await an_ended_batch(db)
        working = Outbox(db, Sender())
        task = asyncio.create_task(working.run())
        working.wake()
        await settled(working)
        task.cancel()
        await asyncio.wait([task])
        assert receiver.received == []
    (delivery,) = await webhooks.deliveries(db, webhook.id, limit=9)
    assert delivery.last_error == "127.0.0.1 is not a public address"


def test_secrets_are_in_no_representation() -> None:
    secret = words.new_secret()
    taken = Taken(new_id(), "https://x.example", secret, secret, datetime.now(UTC), 0, None)
    assert secret not in repr(taken)
    webhook = Webhook(
        new_id(), "acme", "x", "https://x.example", [], secret[-4:], taken.lease_until, taken.lease_until
    )
    assert secret not in repr(webhook)
