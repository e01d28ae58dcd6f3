"""The worker as a process: it drains, keeps to its time, pauses, resumes and expires batches."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from batchline.model.ids import new_id
from tests.support.processes import batchline, kill, simulated, working, write_requests
from tests.support.waiting import wait_for


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def submit(tmp_path: Path, url: str, location: tuple[str, ...], count: int, *options: str) -> str:
    inputs = write_requests(tmp_path / f"in-{count}.jsonl", count)
    done = batchline("submit", str(inputs), "--upstream", url, "--json", *options, *location)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def status(batch: str, location: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(batchline("status", batch, "--json", *location).stdout)
    return found


def count(database: str, query: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_drain_ends_when_nothing_is_left(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    with simulated() as upstream:
        batches = [submit(tmp_path, upstream.url, location, size) for size in (1, 40, 300)]
        done = batchline("worker", "--drain", "--json", *location)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"claimed": 341, "completed": 341, "failed": 0, "held": []}
    assert [status(batch, location)["status"] for batch in batches] == ["completed"] * 3
    assert count(database_url, "SELECT count(*) FROM batchline.workers") == 0


def test_drain_on_an_empty_database_ends_at_once(location: tuple[str, ...]) -> None:
    assert batchline("worker", "--drain", *location).returncode == 0


def test_drain_waits_for_its_own_retries(tmp_path: Path, location: tuple[str, ...]) -> None:
    with simulated("--error-rate", "0.5", "--seed", "3") as upstream:
        batch = submit(tmp_path, upstream.url, location, 40, "--max-attempts", "50")
        assert batchline("worker", "--drain", *location).returncode == 0
    counts = status(batch, location)["request_counts"]
    assert {name: items for name, items in counts.items() if items} == {"total": 40, "completed": 40}


def test_max_seconds_leaves_in_time_and_gives_back_the_rest(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    with simulated("--latency", "100") as upstream:
        batch = submit(tmp_path, upstream.url, location, 5_000)
        # A slow machine has sent the first ones by then.
        done = batchline("worker", "--max-seconds", "10", "-c", "8", *location)
    assert done.returncode == 0
    assert count(database_url, "SELECT count(*) FROM batchline.spans WHERE worker_id IS NOT NULL") == 0
    counts = status(batch, location)["request_counts"]
    assert 0 < counts["completed"] < 5_000


def test_a_paused_batch_stops_and_continues_when_resumed(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    with simulated("--latency", "50") as upstream:
        # They take 19 s, and the command that pauses them takes some seconds on a slow machine.
        batch = submit(tmp_path, upstream.url, location, 3_000)
        with working(database_url, tmp_path / "data", "-c", "8") as process:
            wait_for("a start", lambda: upstream.stats()["executed"] >= 50)
            assert batchline("pause", batch, *location).returncode == 0
            wait_for(
                "nothing held",
                lambda: (
                    count(database_url, "SELECT count(*) FROM batchline.spans WHERE worker_id IS NOT NULL")
                    == 0
                ),
            )
            at_rest = upstream.stats()["requests"]
            assert status(batch, location)["status"] == "paused"
            assert upstream.stats()["requests"] == at_rest < 3_000
            assert batchline("resume", batch, *location).returncode == 0
            wait_for("the end", lambda: status(batch, location)["status"] == "completed")
            kill(process, signal.SIGTERM)
            assert process.returncode == 0
        assert upstream.stats()["executed"] == 3_000


def test_a_batch_past_its_deadline_expires_with_its_results_so_far(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    with simulated("--latency", "50") as upstream:
        batch = submit(tmp_path, upstream.url, location, 5_000)
        with working(database_url, tmp_path / "data", "-c", "8"):
            wait_for(
                "results", lambda: count(database_url, "SELECT completed FROM batchline.current_batches") > 0
            )
            with psycopg.connect(database_url) as connection:
                connection.execute("UPDATE batchline.batches SET expires_at = now()")
                connection.execute("UPDATE batchline.lanes SET deadline = now()")
            wait_for("expiry", lambda: status(batch, location)["status"] == "expired")
    counts = status(batch, location)["request_counts"]
    assert 0 < counts["completed"] < 5_000
    done = batchline("results", batch, "--errors", *location)
    codes = [json.loads(line)["error"]["code"] for line in done.stdout.splitlines()]
    assert codes == ["batch_expired"] * (5_000 - counts["completed"])
    assert batchline("watch", batch, *location).returncode == 1


def test_states_that_do_not_allow_a_change_are_refused(tmp_path: Path, location: tuple[str, ...]) -> None:
    with simulated() as upstream:
        batch = submit(tmp_path, upstream.url, location, 1)
        assert batchline("resume", batch, *location).returncode == 1
        assert batchline("worker", "--drain", *location).returncode == 0
    for change in ("cancel", "pause", "resume"):
        done = batchline(change, batch, *location)
        assert done.returncode == 1
        assert "completed" in done.stderr


@pytest.fixture
def port() -> Iterator[str]:
    """A port that is bound all the time: nobody else gets it while no upstream listens on it."""
    with socket() as taken:
        taken.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield str(taken.getsockname()[1])


def test_an_unreachable_upstream_uses_up_no_attempts(
    tmp_path: Path, location: tuple[str, ...], database_url: str, port: str
) -> None:
    # The lines would take 25 s; the upstream is killed in the first of them.
    with simulated("--latency", "200", "--port", port) as upstream:
        batch = submit(tmp_path, upstream.url, location, 1_000, "--max-attempts", "2")
        with working(database_url, tmp_path / "data", "-c", "8"):
            wait_for("a start", lambda: upstream.stats()["executed"] >= 20)
            kill(upstream.process, signal.SIGKILL)
            wait_for(
                "deferred work",
                lambda: (
                    count(
                        database_url,
                        "SELECT count(*) FROM batchline.spans WHERE worker_id IS NULL AND attempt <= 2",
                    )
                    > 0
                ),
            )
            with simulated("--port", port):
                wait_for("the end", lambda: status(batch, location)["status"] == "completed")
    assert status(batch, location)["request_counts"]["failed"] == 0


def test_the_listener_alone_goes_around_a_pooler(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    """Its address is told from the others' by the role, since there is no pooler here."""
    role = f"ear_{new_id().hex}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            listen = make_conninfo(database_url, user=role)
            with working(database_url, tmp_path / "data", "--listen", listen), simulated() as upstream:
                roles = """
                    SELECT usename, application_name FROM pg_stat_activity
                    WHERE datname = current_database()
                      AND application_name IN ('batchline listener', 'batchline poll')
                """

                def both() -> list[tuple[str, str]]:
                    rows = connection.execute(roles).fetchall()
                    return rows if len(rows) == 2 else []

                found = {name: user for user, name in wait_for("both connections", both)}
                assert found["batchline listener"] == role != found["batchline poll"]
                batch = submit(tmp_path, upstream.url, location, 3)
                wait_for("the batch", lambda: status(batch, location)["status"] == "completed")
        finally:
            connection.execute(f"DROP ROLE {role}".encode())
