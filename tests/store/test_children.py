"""What a child tells of itself to whoever may look."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from batchline.cli.main import command_line
from batchline.governance.children import ChildFailure, reported
from batchline.governance.operations import Operation
from batchline.model import DEFAULT_TENANT, Approval, Child, ChildStatus, Failed, GovernedBatch, ids
from batchline.secrets.masking import MASK
from batchline.store import spans
from batchline.store.session import Session
from tests.support.builders import a_worker, on, take
from tests.support.governance import ANNA, RESIZE, production, some_rules, submit

QUOTED = {"message": "bad password=hunter2 at postgres://u:hunter2@db", "pin": "hunter2", "token": "hunter2"}


def a_line(body: object) -> str:
    response = {"status_code": 400, "request_id": "r", "body": body}
    return json.dumps({"id": "x", "custom_id": "1", "response": response, "error": None})


def a_child(status: ChildStatus, output: str | None) -> Child:
    return Child(1, "1", status, 1, 400, None, None, "{}", output)


def a_batch(database_url: str) -> GovernedBatch:
    return on(database_url, lambda db: submit(db, some_rules(), ANNA, production()))


@pytest.mark.parametrize("operation", [RESIZE, None], ids=["known", "known no more"])
@pytest.mark.parametrize("status", [ChildStatus.SUCCEEDED, ChildStatus.FAILED])
def test_secrets_are_masked_whether_or_not_the_operation_is_still_known(
    database_url: str, operation: Operation | None, status: ChildStatus
) -> None:
    body = QUOTED if operation else {name: QUOTED[name] for name in ("message", "token")}
    displayed = reported(a_child(status, a_line(body)), a_batch(database_url), operation)
    assert "hunter2" not in str(msgspec.to_builtins(displayed))
    assert MASK in str(msgspec.to_builtins(displayed))


def test_an_answer_without_a_message_is_displayed_whole_and_masked(database_url: str) -> None:
    displayed = reported(
        a_child(ChildStatus.FAILED, a_line({"pin": "hunter2"})), a_batch(database_url), RESIZE
    )
    assert displayed.error == ChildFailure("http_400", f'{{"pin":"{MASK}"}}')


def test_a_child_that_never_ran_says_why(database_url: str) -> None:
    batch = a_batch(database_url)
    never = a_child(ChildStatus.CANCELLED, None)
    rejected = msgspec.structs.replace(
        batch, approval=Approval.REJECTED, decided_by="carla", decision_reason="no"
    )
    cancelled = msgspec.structs.replace(batch, cancelling_at=batch.created_at)
    codes = [reported(never, each, RESIZE).error for each in (rejected, cancelled, batch)]
    assert [error and error.code for error in codes] == ["BATCH_REJECTED", "BATCH_CANCELLED", "BATCH_EXPIRED"]
    assert "carla: no" in str(codes[0])


async def fail_quoting_secrets(db: Session) -> str:
    """An operator's own handler may store anything."""
    batch = await submit(db, some_rules(), msgspec.structs.replace(ANNA, tenant=DEFAULT_TENANT), 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [Failed(item, a_line(QUOTED | {"pin": "x"}).encode(), 400)])
    return ids.show(ids.BATCH, batch.id)


def test_the_command_displays_no_secret_either(database_url: str) -> None:
    batch_id = on(database_url, fail_quoting_secrets)
    for options in ((), ("--json",)):
        done = CliRunner().invoke(
            command_line(), ["ops", "show", batch_id, *options], env={"BATCHLINE_DATABASE_URL": database_url}
        )
        assert done.exit_code == 0, done.stderr
        assert "http_400" in done.stdout
        assert "hunter2" not in done.stdout
