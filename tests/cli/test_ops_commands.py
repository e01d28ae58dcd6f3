"""`batchline ops`, `limits` and `audit` on a real database, run in this process: each is quick, and there are
many of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from batchline.cli.main import command_line
from tests.support.processes import simulated_cluster, stop, working
from tests.support.waiting import wait_for

SETTINGS = """
[[upstreams]]
name = "cluster"
base_url = "{url}"

[packs]
kubevirt = {{ upstream = "cluster" }}
"""
CREATE = [
    {"namespace": "test", "name": name, "cpu": 1, "memory": "1Gi", "image": "fedora:42"}
    for name in ("a", "b")
]
REQUEST = "0191d0a0-0000-7000-8000-000000000001"

Command = Callable[..., Result]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "batchline.toml"
    path.write_text(SETTINGS.format(url="http://127.0.0.1:9"))
    return path


@pytest.fixture
def command(database_url: str, tmp_path: Path, config: Path) -> Command:
    def run(*arguments: str) -> Result:
        location = {"BATCHLINE_DATABASE_URL": database_url, "BATCHLINE_DATA_DIR": str(tmp_path)}
        return CliRunner().invoke(
            command_line(), arguments, env={**location, "BATCHLINE_CONFIG": str(config)}
        )

    return run


def read(done: Result, code: int = 0) -> Any:
    assert done.exit_code == code, f"exit code {done.exit_code}: {done.stderr}"
    return json.loads(done.stdout)


def items(folder: Path, content: Any = CREATE) -> str:
    path = folder / "items.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_batch_is_submitted_approved_run_and_audited(
    command: Command, config: Path, tmp_path: Path, database_url: str
) -> None:
    with simulated_cluster() as cluster:
        config.write_text(SETTINGS.format(url=cluster.url))
        listed = read(command("ops", "list", "--json"))["data"]
        assert [each["name"] for each in listed] == [
            "approve",
            "vm_create",
            "vm_delete",
            "vm_restart",
            "vm_start",
            "vm_stop",
        ]
        submit = (
            "ops",
            "submit",
            "vm_create",
            items(tmp_path),
            "--request-id",
            REQUEST,
            "--as",
            "ann",
            "--json",
        )
        made = read(command(*submit, "--reason", "token=hunter2hunter2"))
        assert (made["status"], made["child_count"], made["pending_count"]) == ("PENDING_APPROVAL", 2, 2)
        # The same again is the same batch.
        assert read(command(*submit, "--reason", "token=hunter2hunter2"))["batch_id"] == made["batch_id"]
        waiting = read(command("ops", "batches", "--pending", "--json"))["data"]
        assert [batch["batch_id"] for batch in waiting] == [made["batch_id"]]
        with working(database_url, tmp_path, "--config", str(config)) as worker:
            decided = read(command("ops", "approve", made["batch_id"], "--as", "bob", "--json"))
            assert decided["decided_by"] == "bob"
            displayed = wait_for(
                "both machines",
                lambda: done(read(command("ops", "show", made["batch_id"], "--json"))),
            )
            # A worker that is killed may still commit an entry of the audit log.
            stop(worker)
        assert displayed["status"] == "COMPLETED"
        assert [child["status"] for child in displayed["children"]] == ["SUCCEEDED", "SUCCEEDED"]
        assert cluster.stats()["objects"]["virtualmachines"] == 2
    log = [json.loads(line) for line in command("audit").stdout.splitlines()]
    assert [entry["action"] for entry in log][:2] == ["batch.submitted", "batch.approved"]
    assert [entry["actor"] for entry in log][:2] == ["ann", "bob"]
    assert "hunter2" not in json.dumps(log)
    of_batch = read(command("audit", "--batch", made["batch_id"], "--since", "1h", "--json"))["data"]
    assert of_batch == log


def done(displayed: dict[str, Any]) -> dict[str, Any] | None:
    return displayed if displayed["pending_count"] == 0 else None


def test_a_rejected_batch_never_runs_and_is_not_decided_twice(command: Command, tmp_path: Path) -> None:
    made = read(command("ops", "submit", "vm_create", items(tmp_path), "--json"))
    rejected = read(command("ops", "reject", made["batch_id"], "--reason", "too many", "--json"))
    assert (rejected["status"], rejected["decision_reason"]) == ("CANCELLED", "too many")
    again = command("ops", "approve", made["batch_id"])
    assert again.exit_code == 1
    assert "APPROVAL_NOT_PENDING" in again.stderr


def test_an_approval_for_so_many_children_is_none_for_another_number(
    command: Command, tmp_path: Path
) -> None:
    made = read(command("ops", "submit", "vm_create", items(tmp_path), "--as", "ann", "--json"))
    approve = ("ops", "approve", made["batch_id"], "--as", "bob", "--children")
    refused = command(*approve, "1")
    assert refused.exit_code == 1
    assert "The batch now has 2 children, not 1. Review it again. (BATCH_CHANGED)" in refused.stderr
    assert "BATCH_CHANGED" in read(command(*approve, "3", "--json"), 1)["error"]["message"]
    assert command(*approve, "0").exit_code == 2
    assert read(command("ops", "show", made["batch_id"], "--json"))["status"] == "PENDING_APPROVAL"
    approved = read(command(*approve, "2", "--json"))
    assert (approved["approval"], approved["decided_by"]) == ("approved", "bob")


def test_items_may_come_one_per_line_and_their_errors_are_reported(command: Command, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(item) for item in CREATE)
    assert read(command("ops", "submit", "vm_create", items(tmp_path, lines), "--json"))["child_count"] == 2
    refused = command("ops", "submit", "vm_create", items(tmp_path, [{**CREATE[0], "cpu": 0}]), "--as", "cy")
    assert refused.exit_code == 1
    assert "items[0].cpu" in refused.stderr
    assert "INVALID_BATCH_REQUEST" in refused.stderr
    broken = command("ops", "submit", "vm_create", items(tmp_path, '{"a": 1}\n{'))
    assert broken.exit_code == 2
    assert "line 2" in broken.stderr
    assert command("ops", "submit", "vm_create", items(tmp_path), "--request-id", "x").exit_code == 2


def test_limits_hold_and_are_lifted_set_and_shown(command: Command, tmp_path: Path) -> None:
    submit = (
        "ops",
        "submit",
        "vm_start",
        items(tmp_path, [{"namespace": "test", "name": "a"}]),
        "--as",
        "ann",
    )
    read(command(*submit, "--json"))
    too_soon = command(*submit)
    assert too_soon.exit_code == 1
    assert "RATE_LIMIT_EXCEEDED, user_cooldown" in too_soon.stderr
    exempted = read(command("limits", "exempt", "ann", "--for", "1h", "--reason", "a move", "--json"))
    assert exempted["user_id"] == "ann"
    read(command(*submit, "--json"))
    (ann,) = read(command("limits", "status", "--json"))["users"]
    assert ann["pending_parents"] == {"current_value": 2, "max_value": 3}
    assert (ann["pending_children"]["current_value"], ann["exempt"]) == (2, True)
    assert command("limits", "exempt", "ann", "--remove", "--reason", "done").exit_code == 0
    assert command("limits", "exempt", "ann", "--remove", "--reason", "done").exit_code == 1
    numbers = ("--parents", "7", "--children", "70", "--cooldown", "0")
    assert (
        read(command("limits", "set", "ann", *numbers, "--reason", "trusted", "--json"))["cooldown_seconds"]
        == 0
    )
    read(command(*submit, "--json"))
    status = read(command("limits", "status", "--json"))
    (ann,) = status["users"]
    assert (ann["pending_parents"]["max_value"], ann["pending_children"]["max_value"]) == (7, 70)
    assert not ann["exempt"]
    assert status["global"]["pending_parents"]["current_value"] == 3
    actions = [json.loads(line)["action"] for line in command("audit").stdout.splitlines()]
    assert [action for action in actions if action.startswith("limits.")] == [
        "limits.exempted",
        "limits.exemption_dropped",
        "limits.set",
    ]
    assert command("limits", "exempt", "ann", "--reason", "x").exit_code == 2
    assert command("limits", "exempt", "ann", "--until", "2001-01-01", "--reason", "x").exit_code == 2


def test_everything_can_also_be_read_by_people(command: Command, tmp_path: Path) -> None:
    assert "vm_create" in command("ops", "list").stdout
    made = command("ops", "submit", "vm_delete", items(tmp_path, [{"namespace": "test", "name": "a"}]))
    assert "PENDING_APPROVAL" in made.stdout
    batch = made.stdout.split(":")[0]
    assert batch in command("ops", "batches").stdout
    assert "PENDING" in command("ops", "show", batch).stdout
    assert "batches pending" in command("limits", "status").stdout


def test_show_prints_the_items_without_their_secrets(command: Command, tmp_path: Path) -> None:
    created = [{**each, "user_data": "password: hunter2"} for each in CREATE]
    batch_id = read(command("ops", "submit", "vm_create", items(tmp_path, created), "--json"))["batch_id"]
    displayed = read(command("ops", "show", batch_id, "--json"))
    assert [child["item"] for child in displayed["children"]] == [
        {**each, "user_data": "***REDACTED***"} for each in CREATE
    ]
    assert displayed["updated_at"] == displayed["created_at"]
    assert displayed["children"][0]["last_attempt_at"] is None
    table = command("ops", "show", batch_id).stdout
    assert "fedora:42" in table.replace("\n", "").replace(" ", "")
    assert "hunter2" not in table


def test_batches_and_children_are_listed_by_status(command: Command, tmp_path: Path) -> None:
    batch_id = read(command("ops", "submit", "vm_create", items(tmp_path), "--json"))["batch_id"]
    command("ops", "reject", batch_id, "--as", "bob")
    for status, found in (("CANCELLED", [batch_id]), ("cancelled", [batch_id]), ("FAILED", [])):
        data = read(command("ops", "batches", "--status", status, "--json"))["data"]
        assert [batch["batch_id"] for batch in data] == found
    for status, count in (("CANCELLED", 2), ("SUCCEEDED", 0)):
        assert len(read(command("ops", "show", batch_id, "--status", status, "--json"))["children"]) == count
    assert command("ops", "show", batch_id, "--status", "GONE").exit_code == 2


def test_the_submitters_of_the_settings_hold_for_the_command_too(
    command: Command, config: Path, tmp_path: Path
) -> None:
    """It acts as an admin, under the name that was given."""
    config.write_text(
        SETTINGS.format(url="http://127.0.0.1:9").replace(
            '"cluster" }', '"cluster", submitters = { vm_create = ["ann"], vm_delete = ["role:admin"] } }'
        )
    )
    refused = command("ops", "submit", "vm_create", items(tmp_path), "--as", "bob")
    assert (refused.exit_code, "PERMISSION_DENIED" in refused.stderr) == (1, True), refused.stderr
    read(command("ops", "submit", "vm_create", items(tmp_path), "--as", "ann", "--json"))
    one = items(tmp_path, [{"namespace": "test", "name": "a"}])
    read(command("ops", "submit", "vm_delete", one, "--as", "bob", "--json"))
    (listed,) = (e for e in read(command("ops", "list", "--json"))["data"] if e["name"] == "vm_create")
    assert listed["submitters"] == ["ann"]


def test_every_command_that_needs_the_settings_reports_a_mistake_in_them(
    command: Command, config: Path
) -> None:
    config.write_text(SETTINGS.format(url="http://x").replace("kubevirt", "kubvirt"))
    refused = command("ops", "list")
    assert refused.exit_code == 2
    assert "line 7: unknown pack 'kubvirt'" in refused.stderr


def test_a_dry_run_says_what_would_happen_and_creates_nothing(command: Command, tmp_path: Path) -> None:
    submit = ("ops", "submit", "vm_create", items(tmp_path), "--as", "ann", "--validate-only")
    assert "valid: 2 items; nothing was created" in command(*submit).stdout
    found = read(command(*submit, "--steps", "1,2,...", "--json"))
    assert (found["valid"], found["child_count"], found["batch_id"]) == (True, 2, None)
    assert read(command("ops", "batches", "--json"))["data"] == []
    refused = command(*submit, "--sample", "2")
    assert refused.exit_code == 1
    assert "sample must be smaller than the number of items" in refused.stderr


def test_a_held_batch_is_approved_by_its_digest(command: Command, tmp_path: Path) -> None:
    submit = (
        "ops",
        "submit",
        "vm_create",
        items(tmp_path),
        "--as",
        "ann",
        "--hold",
        "--steps",
        "1",
        "--json",
    )
    batch = read(command(*submit))["batch_id"]
    digest = read(command("ops", "show", batch, "--json"))["content_digest"]
    assert f"--digest {digest}" in " ".join(command("ops", "show", batch).stdout.split())
    approve = ("ops", "approve", batch, "--as", "bob", "--json")
    refused = command(*approve)
    assert refused.exit_code == 1
    assert "CONTENT_DIGEST_REQUIRED" in refused.stderr
    assert "BATCH_CHANGED" in command(*approve, "--digest", "0" * 64).stderr
    assert read(command(*approve, "--digest", digest))["content_digest"] == digest
    released = read(command("ops", "release", batch, "--as", "ann", "--json"))
    assert (released["steps"]["step"], released["steps"]["lines_begun"]) == (1, 1)
    assert read(command("ops", "pause", batch, "--as", "ann", "--json"))["paused"]
    assert not read(command("ops", "resume", batch, "--as", "ann", "--json"))["paused"]
