"""A tenant with something to see on every page: batches in every state, failures, approvals, limits.

Users do everything over HTTP, and a real worker runs it. Parts of the large batches are settled by the
store's own statements. Only the notes of the last hour are written by SQL: nobody waits for an hour.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import openai

from batchline.batches.output import answered_line
from batchline.model import Completed, Failed, Item, Retried, Role, Usage, Verdict, ids
from batchline.store import batches, spans
from batchline.store.session import Session
from tests.support.builders import a_worker, on, sql, take
from tests.support.dashboard_site import CHAT, Site, caller, created
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import receiving

MODELS = ("gpt-5-mini", "llama-3.3-70b")
_TEXTS = (
    "I was charged twice this month. Please refund one of the payments.",
    "The app closes when I open the settings on my phone.",
    "How do I change the address of my delivery?",
    "Where can I download the invoice for March?",
    "Your update deleted my saved searches. Can I get them back?",
)
_LABELS = ("billing", "bug", "delivery", "invoice", "data loss")
_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9120 tokens."
)
_REFUSED = "The response was filtered due to the prompt triggering the content management policy."


@dataclass(frozen=True, slots=True)
class SeededTenant:
    name: str
    # Addresses by the name of what they show.
    pages: dict[str, str]


@contextmanager
def seeded_tenant(site: Site, tenant: str, folder: Path, *, scale: float = 1.0) -> Iterator[SeededTenant]:
    """Requests of batches that still run are held back while the site runs. `scale`: of large batches."""
    with receiving() as receiver:
        seeding = _Seeding(site, tenant, folder, scale)
        seeding.webhooks(receiver.url)
        pages = seeding.fill()
    yield SeededTenant(tenant, pages)


def prompts(path: Path, count: int, *, word: str = "", models: Sequence[str] = MODELS[:1]) -> Path:
    """A file of request lines as a user would write it. `word` is the user in every request."""
    with path.open("w") as stream:
        for number in range(1, count + 1):
            body = {
                "model": models[number % len(models)],
                "messages": [
                    {
                        "role": "system",
                        "content": "Classify the message of a customer. Answer with one label.",
                    },
                    {"role": "user", "content": f"Ticket {number}: {_TEXTS[number % len(_TEXTS)]}"},
                ],
                "temperature": 0.2,
                **({"user": word} if word else {}),
            }
            line = {"custom_id": f"ticket-{number:06}", "method": "POST", "url": CHAT, "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


class _Seeding:
    def __init__(self, site: Site, tenant: str, folder: Path, scale: float) -> None:
        self._scale = scale
        self._server, self._upstream = site.server, site.upstream
        self._tenant, self._folder = tenant, folder
        self._key = self._server.key(tenant, Role.USER, "nightly-jobs")
        self._admin = self._server.key(tenant, Role.ADMIN, "root")
        # The one that has finished parts of the large batches.
        self._other = a_worker("gpu-host-2:4127@machine/1")
        # Requests of this user are held back.
        self._held = f"{tenant}-night"

    def fill(self) -> dict[str, str]:
        self._upstream.hold(self._held)
        ended = self._ended()
        # Before the others, which use all that the upstream takes at once.
        stopped = self._stopped()
        late = self._large("support-tickets-march", 24_000, 15_300, rate=6.0, deadline=900, priority=5)
        models = self._large("eval-two-models", 3_000, 1_180, rate=9.0, models=MODELS)
        self._large("catalog-descriptions", 9_500, 8_800, rate=21.0)
        paused = self._large("translations-fr", 4_000, 900, rate=0.0)
        on(self._server.database, lambda db: batches.close(db, paused, "pause"))
        approval = self._operations()
        self._limits()
        files = self._files()
        action = self._action()
        return {
            "overview": "/",
            "batches": "/ui/batches",
            "batches-filtered": "/ui/batches?status=in_progress,paused&sort=deadline",
            "batches-empty": "/ui/batches?q=nothing",
            "batch": _page(late),
            "batch-models": _page(models),
            "batch-paused": _page(paused),
            "batch-steps": f"/ui/batches/{stopped}",
            "batch-ended": f"/ui/batches/{ended}",
            "batch-failures": f"{_page(late)}/failures",
            "batch-items": f"{_page(late)}/items?state=failed",
            "batch-output": f"/ui/batches/{ended}/output",
            "batch-settings": f"{_page(late)}/settings",
            "batch-approval": f"/ui/batches/{approval}",
            "item": f"/ui/batches/{ended}/items/7",
            "files": "/ui/files",
            "file": f"/ui/files/{files['good']}",
            "file-problems": f"/ui/files/{files['bad']}",
            "operations": "/ui/operations",
            "bulk-actions": "/ui/actions",
            "bulk-action": f"/ui/actions/{action}",
            "admin-limits": "/ui/admin/limits",
            "admin-exemptions": "/ui/admin/exemptions",
            "admin-keys": "/ui/admin/keys",
            "admin-webhooks": "/ui/admin/webhooks",
            "admin-audit": "/ui/admin/audit",
            "admin-maintenance": "/ui/admin/maintenance",
        }

    def webhooks(self, url: str) -> None:
        with self._server.http(self._key) as http:
            for name, events in (
                ("chat", ["batch.completed", "batch.failed"]),
                ("billing", ["batch.completed"]),
            ):
                hook = {"name": name, "url": url, "event_types": events}
                assert http.post("/v1/webhook_endpoints", json=hook).is_success
            # One that was delivered.
            self._submit("hello-world", 3)
            wait_for("the end of a batch", lambda: self._statuses() == {"completed"})

            def delivered() -> bool:
                (_, hook) = http.get("/v1/webhook_endpoints").json()["data"]
                found = http.get(f"/v1/webhook_endpoints/{hook['id']}/deliveries").json()["data"]
                return [each["status"] for each in found] == ["delivered"]

            wait_for("the delivery", delivered)

    def _submit(self, name: str, count: int, *, word: str = "", **more: Any) -> str:
        models = more.pop("models", MODELS[:1])
        path = prompts(self._folder / f"{name}.jsonl", count, word=word, models=models)
        return created(self._server, self._tenant, path, key=self._key, metadata={"name": name}, **more)

    def _client(self) -> openai.OpenAI:
        return self._server.client(key=self._key)

    def _statuses(self) -> set[str]:
        with self._client() as client:
            return {each.status for each in client.batches.list(limit=100)}

    def _ended(self) -> str:
        """Run by the worker: 60 lines, of which three failed, one after several attempts."""
        hot, broken = '"temperature": 2.5', "Ticket 41: "
        self._upstream.refuse(hot, 422, "`temperature` must be between 0 and 2.")
        self._upstream.refuse(broken, 500, "The model failed at this prompt. Try again in a moment.")
        path = prompts(self._folder / "nightly-tags.jsonl", 60)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for number in (7, 23):
            lines[number - 1]["body"]["temperature"] = 2.5
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        batch = created(self._server, self._tenant, path, key=self._key, metadata={"name": "nightly-tags"})
        for number in range(1, 6):
            self._submit(f"digest-{number:02}", 12)
        cancelled = self._submit("press-review", 80, word=self._held, extra_body={"steps": "5,100%"})
        with self._client() as client:
            client.batches.cancel(cancelled)
        wait_for("the nightly batch", lambda: self._status(batch) == "completed")
        self._upstream.accept(broken)
        return batch

    def _status(self, batch: str) -> str:
        with self._client() as client:
            return client.batches.retrieve(batch).status

    def _large(self, name: str, total: int, done: int, *, rate: float, **more: Any) -> UUID:
        """A batch in progress: other workers have finished a part of it."""
        changes = {key: more.pop(key) for key in ("deadline", "priority") if key in more}
        total, done = round(total * self._scale), round(done * self._scale)
        public = self._submit(name, total, word=self._held, **more)
        batch = ids.read(ids.BATCH, public)
        assert batch is not None

        async def scenario(db: Session) -> None:
            left = done
            while left > 0 and (
                taken := await take(db, self._other, min(left, 1000), spans.Scope(batch_id=batch))
            ):
                await spans.settle(db, self._other.id, [_verdict(item) for item in taken])
                left -= len(taken)
            if rate:
                await take(db, self._other, 15, spans.Scope(batch_id=batch))
            await _note(db, batch, rate)
            await _take_time(db, batch)

        on(self._server.database, scenario)
        if "deadline" in changes:
            until = datetime.now(UTC) + timedelta(seconds=changes["deadline"])
            changes["deadline"] = until.isoformat()
        with caller(self._server, self._tenant, "root", key=self._admin) as admin:
            assert not changes or admin.patch(f"/dashboard/batches/{public}", json=changes).is_success
        return batch

    def _stopped(self) -> str:
        word = f"{self._tenant}-v2"
        second = f'Ticket 2: {_TEXTS[2]}"}}], "temperature": 0.2, "user": "{word}"'
        self._upstream.refuse(second, 400, "Unknown field `max_token` in the request.")
        batch = self._submit("prompt-v2", 1_200, word=word, extra_body={"steps": "1,2,4,..."})
        with self._server.http(self._key) as http:

            def paused() -> bool:
                return bool(http.get(f"/v1/batches/{batch}").json()["batchline"]["paused"])

            wait_for("the stop of a run in steps", paused)
        return batch

    def _operations(self) -> str:
        machines = [{"vm": f"web-{number}", "namespace": "staging"} for number in range(1, 25)]
        with caller(self._server, self._tenant, "grace") as grace:

            def submit(items: list[Any], reason: str) -> str:
                body = {"items": items, "reason": reason, "custom_ids": [each["vm"] for each in items]}
                answer = grace.post("/operations/vm_restart/batches", json=body)
                assert answer.status_code == 202, answer.text
                return str(answer.json()["batch_id"])

            done = submit(machines[:6], "Kernel update, first group")
            waiting = submit(machines, "Kernel update of the web servers, ticket OPS-2231")
        with caller(self._server, self._tenant, "linus", Role.APPROVER) as approver:
            digest = approver.get(f"/batches/{done}").json()["approval"]["content_digest"]
            answer = approver.post(
                f"/batches/{done}/approve", json={"reason": "Agreed.", "content_digest": digest}
            )
            assert answer.is_success, answer.text
        return waiting

    def _limits(self) -> None:
        with caller(self._server, self._tenant, "root", key=self._admin) as admin:
            exemption = {
                "user_id": "night-job",
                "reason": "Backfill of the archive",
                "expires_at": (datetime.now(UTC) + timedelta(days=14)).isoformat(),
            }
            assert admin.post("/admin/rate-limits/exemptions", json=exemption).is_success

    def _files(self) -> dict[str, str]:
        good = prompts(self._folder / "reviews-april.jsonl", 250, models=MODELS)
        lines = good.read_text().splitlines()[:40]
        lines[11] = lines[11][:-2]
        lines[18] = lines[17]
        lines[30] = '{"custom_id": "ticket-000031", "method": "POST", "url": "/v1/chat/completions"}'
        bad = self._folder / "reviews-draft.jsonl"
        bad.write_text("\n".join(lines) + "\n")
        with self._client() as client:
            return {
                name: client.files.create(file=path, purpose="batch").id
                for name, path in (("bad", bad), ("good", good))
            }

    def _action(self) -> str:
        with caller(self._server, self._tenant, "root", key=self._admin) as admin:

            def start(**what: Any) -> str:
                answer = admin.post("/dashboard/actions", json=what)
                assert answer.status_code == 202, answer.text
                return str(answer.json()["id"])

            def over() -> bool:
                return all(
                    each["state"] != "running" for each in admin.get("/dashboard/actions").json()["data"]
                )

            start(action="priority", value=1, filter={"q": "eval"})
            second = start(action="pause", filter={"q": "digest"})
            wait_for("the end of both actions", over)
        return second


def _page(batch: UUID) -> str:
    return f"/ui/batches/{ids.show(ids.BATCH, batch)}"


def _verdict(item: Item) -> Verdict:
    number = item.line_no
    if number % 997 == 0:
        return Retried(item, "http_429", "Rate limit reached for requests", 3600.0)
    if number % 401 == 0:
        return _failed(item, 400, _REFUSED)
    if number % 149 == 0:
        return _failed(item, 400, _TOO_LONG)
    label = _LABELS[number % len(_LABELS)]
    answer = {
        "id": f"chatcmpl-{number}",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": label}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 61, "completion_tokens": 3, "total_tokens": 64},
    }
    line = answered_line(item, 200, f"req_{number}", json.dumps(answer).encode())
    return Completed(item, 200, line, Usage(input_tokens=61, output_tokens=3))


def _failed(item: Item, status: int, message: str) -> Failed:
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
    return Failed(item, answered_line(item, status, f"req_{item.line_no}", body), status)


async def _note(db: Session, batch: UUID, rate: float) -> None:
    """What settles of the last 50 minutes have noted, in waves."""
    await sql(db, "DELETE FROM batchline.progress WHERE batch_id = %(batch)s", batch=batch)
    await sql(
        db,
        "UPDATE batchline.batches SET created_at = now() - interval '55 min',"
        " in_progress_at = now() - interval '54 min' WHERE id = %(batch)s",
        batch=batch,
    )
    for minute in range(50, 0, -1):
        share = 0.75 + 0.2 * math.sin(minute / 4) + 0.05 * math.sin(minute * 1.7)
        completed = round(60 * rate * share)
        await sql(
            db,
            """
            INSERT INTO batchline.progress
            SELECT id, now() - %(minute)s * interval '1 min' + interval '20 s', in_progress_at, tenant, 60,
                %(completed)s, %(failed)s, %(tokens)s, %(cost)s,
                %(completed)s, %(failed)s, %(tokens)s, %(cost)s, %(flying)s
            FROM batchline.batches WHERE id = %(batch)s
            """,
            batch=batch,
            minute=minute,
            completed=completed,
            failed=completed // 90,
            tokens=completed * 64,
            # Nano-dollars.
            cost=completed * 64 * 330,
            flying=round(30 * share) if rate else 0,
        )


async def _take_time(db: Session, batch: UUID) -> None:
    """The upstream has taken half a second or more for each of the newest results."""
    await sql(
        db,
        """
        UPDATE batchline.results AS r
        SET upstream_seconds = 0.4 + 0.9 * mod(r.line_no * 37, 100) / 100.0
        FROM batchline.lanes AS n
        WHERE n.batch_id = %(batch)s AND r.lane_id = n.id
          AND r.line_no > (SELECT max(line_no) - 200 FROM batchline.results WHERE lane_id = n.id)
        """,
        batch=batch,
    )
