"""The user, password and query of an `--upstream` URL, and the password of a database, are shown nowhere."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import batchline, kill, simulated, start, wait_for_executions, write_requests

PASSWORD, KEY = "hunter2hunter2", "SECRETQ"


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def with_secrets(url: str) -> str:
    return url.replace("://", f"://bob:{PASSWORD}@") + f"/v1?key={KEY}"


def output(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def test_no_command_shows_the_secrets_of_an_upstream(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with simulated("--latency", "50") as upstream:
        command = ("run", str(inputs), "-c", "4", *location)
        given = ("--upstream", with_secrets(upstream.url))
        process = start(*command, *given)
        wait_for_executions(upstream, 8)
        displayed = [str(kill(process, signal.SIGINT))]
        assert f"--upstream {upstream.url}/v1  # give the credentials of its URLs again" in displayed[0]
        displayed += [
            output(batchline(*words, *location))
            for words in (("list",), ("list", "--json"), ("status", "@1"), ("status", "@1", "--json"))
        ]
        displayed.append(output(batchline(*command, f"--upstream={given[1]}", "--max-failed", "1")))
        displayed.append((tmp_path / "in.output.jsonl.manifest.json").read_text())
        displayed.append(output(batchline("settings", *given, *location)))
        displayed.append(
            output(batchline("run", str(inputs), "--upstream", f"bob:{PASSWORD}@host", *location))
        )
    for text in displayed:
        assert PASSWORD not in text
        assert KEY not in text


def test_the_offered_command_has_no_password_of_a_database(tmp_path: Path, database_url: str) -> None:
    """The server trusts local connections, so any password is right."""
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    secret = f"{database_url} password={PASSWORD}"
    with simulated("--latency", "50") as upstream:
        process = start(
            "run", str(inputs), "--upstream", upstream.url, "-c", "4",
            "--database", secret, "--data-dir", str(tmp_path / "data"),
        )  # fmt: skip
        wait_for_executions(upstream, 8)
        said = str(kill(process, signal.SIGINT))
    assert "continue with" in said
    assert PASSWORD not in said
