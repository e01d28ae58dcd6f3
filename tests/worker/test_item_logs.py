"""Logs about items name batch, lane and ordinal, and quote nothing of what the items say."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog

from batchline.cli.logs import set_up_logging
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Item, Verdict, ids
from batchline.secrets.tracebacks import traceback_of
from batchline.store import spans
from batchline.store.session import Session, StatementRefused
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.builders import a_batch, read
from tests.support.executors import Answering
from tests.support.logs import log_settings_restored

PROMPT = "a very private prompt"


class Quoting(Answering):
    """Raises an error that quotes its item, at the first attempt of the third line."""

    async def run(self, item: Item) -> Verdict:
        if item.line_no == 3 and item.claim.attempt == 1:
            try:
                raise LookupError(PROMPT)
            except LookupError as error:
                raise RuntimeError(f"because of {PROMPT}") from error
        return await super().run(item)


async def test_an_executor_that_raises_is_logged_with_its_line_and_without_its_message(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 5)
    worker = Worker(database_url, Quoting(), Objects.at(tmp_path), WorkerSettings(drain=True), Scope())
    with structlog.testing.capture_logs() as logs:
        await worker.run()
    (failed,) = [each for each in logs if each["event"] == "executor failed"]
    assert (failed["batch"], failed["ordinal"], failed["attempt"]) == (ids.show(ids.BATCH, batch.id), 2, 1)
    assert isinstance(failed["lane"], int)
    assert "LookupError" in failed["exception"]
    assert 'raise RuntimeError(f"because of {PROMPT}")' in failed["exception"]
    assert PROMPT not in str(logs)
    (again,) = [each for each in logs if each["event"] == "attempt failed"]
    assert (again["ordinal"], again["code"], again["log_level"]) == (2, "internal_error", "info")


async def test_a_refused_result_is_logged_with_its_line_and_without_the_reason(
    database_url: str, db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, settle = await a_batch(db, 1), spans.settle

    async def refusing(session: Session, worker_id: Any, verdicts: Any, *more: Any) -> Any:
        if b"result_refused" not in verdicts[0].output:
            raise StatementRefused(f"invalid value: {PROMPT}")
        return await settle(session, worker_id, verdicts, *more)

    monkeypatch.setattr(spans, "settle", refusing)
    worker = Worker(database_url, Answering(), Objects.at(tmp_path), WorkerSettings(drain=True), Scope())
    with structlog.testing.capture_logs() as logs:
        await worker.run()
    (refused,) = [each for each in logs if each["event"].startswith("the database refused")]
    assert (refused["batch"], refused["ordinal"]) == (ids.show(ids.BATCH, batch.id), 0)
    assert PROMPT not in str(logs)
    assert (await read(db, batch)).failed == 1


def test_a_traceback_is_readable_in_text_and_has_no_message(capfd: pytest.CaptureFixture[str]) -> None:
    with log_settings_restored():
        set_up_logging()
        try:
            int(PROMPT)
        except ValueError as error:
            structlog.get_logger("x").error("failed", exception=traceback_of(error))
        said = capfd.readouterr().err
    assert "int(PROMPT)\n" in said
    assert "builtins.ValueError (message not shown)" in said
    assert PROMPT not in said
    assert io.StringIO(said).readline().count("failed") == 1


def test_an_error_that_is_its_own_cause_is_logged_once() -> None:
    error, other = ValueError(PROMPT), LookupError(PROMPT)
    error.__cause__ = error
    assert traceback_of(error).count("builtins.ValueError") == 1
    error.__cause__, other.__cause__ = other, error
    assert traceback_of(error).count("which led to") == 1


def test_a_long_chain_of_causes_is_cut() -> None:
    errors = [ValueError(PROMPT) for _ in range(1_000)]
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    assert traceback_of(errors[0]).count("builtins.ValueError") == 20
