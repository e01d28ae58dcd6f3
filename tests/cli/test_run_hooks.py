"""The hooks of `run`, step by step. test_completion_hooks.py runs the command."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from batchline.cli.run import patience
from batchline.cli.run.hooks import run_hooks
from batchline.store import hooks
from batchline.store.hooks import HookOutcome
from batchline.store.session import Session, StoreUnavailable
from tests.support.builders import sql, until
from tests.support.hooks import recorded, recording, some_hooks
from tests.support.webhooks import an_ended_batch


async def said(capsys: pytest.CaptureFixture[str], text: str) -> bool:
    return text in capsys.readouterr().out


async def test_a_lost_database_is_reported_and_does_not_fail_the_command(
    db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lost(session: Session, names: Sequence[str], batch_id: UUID) -> None:
        raise StoreUnavailable("no route to host")

    monkeypatch.setattr(hooks, "request", lost)
    monkeypatch.setattr(patience, "_PATIENCE", 0.0)
    batch = await an_ended_batch(db)
    assert await run_hooks(some_hooks(recording(tmp_path / "got")), db, batch) == ()
    assert "the same command again runs them" in capsys.readouterr().out


async def test_it_waits_for_a_process_that_runs_the_hook_and_runs_it_when_that_was_killed(
    database_url: str, db: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = await an_ended_batch(db)
    known = some_hooks(recording(tmp_path / "got"))
    await hooks.request(db, known.names, batch.id)
    assert await hooks.take(db, known.names, lease=3600) is not None

    async with Session(database_url, "run") as session, asyncio.timeout(60):
        running = asyncio.create_task(run_hooks(known, session, batch))
        await until(lambda: said(capsys, "waiting for it"))
        assert recorded(tmp_path / "got") == []
        await sql(db, "UPDATE batchline.hook_deliveries SET available_at = now(), running_until = now()")
        (delivery,) = await running
    assert (delivery.state, delivery.attempts) == ("delivered", 2)
    assert [event["attempt"] for event in recorded(tmp_path / "got")] == [2]


async def test_a_hook_that_another_process_finishes_meanwhile_is_not_run(
    database_url: str, db: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = await an_ended_batch(db)
    known = some_hooks(recording(tmp_path / "got"))
    await hooks.request(db, known.names, batch.id)
    taken = await hooks.take(db, known.names, lease=3600)
    assert taken is not None
    async with Session(database_url, "run") as session, asyncio.timeout(60):
        running = asyncio.create_task(run_hooks(known, session, batch))
        await until(lambda: said(capsys, "waiting for it"))
        await hooks.settle(db, taken, HookOutcome(True), delay=0.0, max_attempts=9)
        (delivery,) = await running
    assert delivery.state == "delivered"
    assert recorded(tmp_path / "got") == []
