"""Too many requests of one user are refused to that user alone, and decisions because of nobody else."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from batchline.config.settings import LimitSettings
from batchline.governance.limits import requests_exceeded, share_of_requests
from batchline.model import RequestKind, Role
from batchline.store import limits
from batchline.store.limits import Counted, Window
from batchline.store.pool import Sessions
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.governance import count, items, production
from tests.support.operations_client import REGISTRY, SETTINGS, Tenant, refused, submit
from tests.support.serving import Server, serving

LIMIT = 20
SHARE = 5
FLOODED = replace(
    SETTINGS, limits=replace(SETTINGS.limits, requests_per_minute=LIMIT, user_requests_percent=25)
)


def flood(client: httpx2.Client, path: str = "/batches") -> httpx2.Response:
    """More than all users together may ask for, and the first refusal, whichever minute it comes in."""
    statuses = Counter(client.get(path).status_code for _ in range(2 * LIMIT))
    assert statuses[200] >= SHARE
    return next(answer for answer in iter(lambda: client.get(path), None) if answer.status_code == 429)


def fill_windows(server: Server) -> None:
    """All users together have used up this minute, and those in which the test may still run."""
    fill = """
        INSERT INTO batchline.api_windows (starts_at, kind, tenant, user_id, requests)
        SELECT date_trunc('minute', now()) + n * interval '1 minute', kind, '', '', 1000000
        FROM generate_series(0, 9) AS n, unnest(ARRAY['read', 'write']) AS kind
        ON CONFLICT (starts_at, kind, tenant, user_id) DO UPDATE SET requests = 1000000
    """
    on(server.database, lambda db: sql(db, fill))


def make_every_decision(approver: httpx2.Client, batch_ids: list[str]) -> list[int]:
    approved, rejected, cancelled = batch_ids
    calls = [
        (approved, "approve"),
        (approved, "pause"),
        (approved, "resume"),
        (rejected, "reject"),
        (cancelled, "cancel"),
    ]
    return [approver.post(f"/batches/{batch_id}/{call}").status_code for batch_id, call in calls]


def approve_together(approver: httpx2.Client, batch_ids: list[str]) -> list[int]:
    paths = ("/approvals/batch", "/operations/approve/batches")
    return [
        approver.post(path, json={"items": [{"batch_id": batch_id}]}).status_code
        for path, batch_id in zip(paths, batch_ids, strict=True)
    ]


def make_every_admin_call(admin: httpx2.Client) -> list[int]:
    limited = {"max_pending_parents": 1, "max_pending_children": 1, "cooldown_seconds": 0, "reason": "x"}
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    exempt: dict[str, Any] = {"user_id": "anna", "reason": "x", "expires_at": until}
    return [
        admin.post("/admin/rate-limits/exemptions", json=exempt).status_code,
        admin.get("/admin/rate-limits/exemptions").status_code,
        admin.delete("/admin/rate-limits/exemptions/anna").status_code,
        admin.put("/admin/rate-limits/users/anna", json=limited).status_code,
        admin.get("/admin/rate-limits/status").status_code,
    ]


def test_a_flood_of_one_user_leaves_other_tenants_their_reads_writes_and_decisions(
    database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, FLOODED, REGISTRY) as server:
        noisy, quiet = Tenant(server), Tenant(server)
        with (
            noisy.caller("anna") as flooding,
            quiet.caller("bert") as bert,
            quiet.caller("emil", Role.ADMIN) as emil,
        ):
            batch_ids = [submit(bert, production(1))["batch_id"] for _ in range(3)]
            answer = flood(flooding)
            error = refused(answer, 429, "RATE_LIMIT_EXCEEDED")
            assert (error["limit_type"], error["max_value"]) == ("user_requests_per_minute", SHARE)
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert emil.get("/batches").status_code == 200
            assert make_every_decision(emil, batch_ids) == [200] * 5
            submit(bert, 1)


def test_a_users_reads_do_not_count_against_writes_and_decisions(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path, FLOODED, REGISTRY) as server:
        tenant = Tenant(server)
        with tenant.caller("emil", Role.ADMIN) as emil:
            flood(emil)
            batch_id = submit(emil, 1)["batch_id"]
            assert emil.post(f"/batches/{batch_id}/cancel").status_code == 200
            assert emil.get("/admin/rate-limits/status").status_code == 200


def test_decisions_and_admin_calls_are_never_refused_because_of_others(
    database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, FLOODED, REGISTRY) as server:
        tenant = Tenant(server)
        with (
            tenant.caller("anna") as anna,
            tenant.caller("emil", Role.ADMIN) as emil,
            tenant.caller("frida", Role.ADMIN) as frida,
            tenant.caller("gustav", Role.APPROVER) as gustav,
        ):
            batch_ids = [submit(anna, production(1))["batch_id"] for _ in range(5)]
            fill_windows(server)
            assert [frida.get("/batches").status_code, frida.get("/operations").status_code] == [200, 200]
            error = refused(anna.get("/batches"), 429, "RATE_LIMIT_EXCEEDED")
            assert error["limit_type"] == "global_requests_per_minute"
            submission = anna.post("/operations/resize/batches", json={"items": items(1)})
            refused(submission, 429, "RATE_LIMIT_EXCEEDED")
            assert make_every_decision(emil, batch_ids[:3]) == [200] * 5
            # Others: these and the decisions are one window of the user's own.
            assert approve_together(gustav, batch_ids[3:]) == [202] * 2
            assert make_every_admin_call(frida) == [201, 200, 204, 200, 200]


def test_approvals_are_not_refused_because_of_the_batches_of_others(
    database_url: str, tmp_path: Path
) -> None:
    few = replace(SETTINGS, limits=replace(SETTINGS.limits, max_pending_parents=2))
    with serving(database_url, tmp_path, few, REGISTRY) as server:
        tenant = Tenant(server)
        with tenant.caller("anna") as anna, tenant.caller("emil", Role.APPROVER) as emil:
            batch_ids = [submit(anna, production(1))["batch_id"] for _ in range(2)]
            submission = anna.post("/operations/resize/batches", json={"items": items(1)})
            error = refused(submission, 429, "RATE_LIMIT_EXCEEDED")
            assert error["limit_type"] == "global_pending_parents"
            submit(emil, [{"batch_id": batch_id} for batch_id in batch_ids], "approve")


def test_a_users_flood_of_decisions_is_refused_too(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path, FLOODED, REGISTRY) as server:
        tenant = Tenant(server)
        with (
            tenant.caller("emil", Role.ADMIN) as emil,
            tenant.caller("frida", Role.ADMIN) as frida,
        ):
            error = refused(flood(emil, "/admin/rate-limits/status"), 429, "RATE_LIMIT_EXCEEDED")
            assert error["limit_type"] == "user_requests_per_minute"
            assert frida.get("/admin/rate-limits/status").status_code == 200


@pytest.mark.parametrize("key", [None, "bl-no-such-key"])
def test_requests_without_a_valid_key_are_not_counted(
    database_url: str, tmp_path: Path, key: str | None
) -> None:
    with serving(database_url, tmp_path, FLOODED, REGISTRY) as server, server.http(key) as nobody:
        for method, path in (
            ("GET", "/batches"),
            ("POST", "/operations/resize/batches"),
            ("POST", "/batches/x/cancel"),
            ("GET", "/admin/rate-limits/status"),
        ):
            body = {"items": items(1)} if path.startswith("/operations") else None
            statuses = [nobody.request(method, f"/api/v1{path}", json=body).status_code for _ in range(LIMIT)]
            assert statuses == [401] * LIMIT
    assert on(database_url, lambda db: count(db, "api_windows")) == 0


# The counts themselves


def test_counts_are_exact_with_many_concurrent_users(database_url: str) -> None:
    users, each, share = 5, 20, 12

    async def run() -> dict[str, list[Counted]]:
        sessions = Sessions(database_url, maximum=8, patience=60)

        async def one(user: str) -> tuple[str, Counted]:
            async with sessions.one() as session:
                return user, await limits.count_request(session, "acme", user, RequestKind.WRITE, share)

        try:
            counted = await asyncio.gather(*(one(f"user-{n % users}") for n in range(users * each)))
        finally:
            await sessions.close()
        return {user: [each for name, each in counted if name == user] for user, _ in counted}

    # Only a new minute makes it begin again, and not twice in a row.
    by_user = next(found for found in iter(lambda: asyncio.run(run()), None) if in_one_minute(found))
    everybody = [counted.everybody for found in by_user.values() for counted in found]
    first = min(number for number in everybody if number is not None)
    assert sorted(number for number in everybody if number is not None) == list(
        range(first, first + users * share)
    )
    for found in by_user.values():
        assert all((counted.everybody is None) == (counted.mine > share) for counted in found)


def in_one_minute(by_user: dict[str, list[Counted]]) -> bool:
    return all(
        sorted(counted.mine for counted in found) == list(range(1, len(found) + 1))
        for found in by_user.values()
    )


async def test_decisions_are_counted_for_their_user_alone(db: Session) -> None:
    counted = await limits.count_request(db, "acme", "anna", RequestKind.DECISION, 9)
    assert (counted.mine, counted.everybody) == (1, None)
    assert await limits.requests_now(db) == Window(0, 0)


@pytest.mark.parametrize(
    ("requests", "percent", "alone", "share"),
    [(1000, 25, False, 250), (1, 25, False, 1), (10, 1, False, 1), (7, 100, False, 7), (7, 10, True, 7)],
)
def test_a_users_share_is_at_least_one_request_and_everything_when_alone(
    requests: int, percent: int, alone: bool, share: int
) -> None:
    settings = LimitSettings(requests_per_minute=requests, user_requests_percent=percent)
    assert share_of_requests(settings, alone=alone) == share
    assert requests_exceeded(settings, Counted(share, None, 1.0), share) is None
    assert requests_exceeded(settings, Counted(share + 1, None, 1.0), share) is not None
