"""A database that takes no writes for a while, as in a failover, ends nobody: all wait and connect again."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from batchline.embedded import EmbeddedPostgres
from batchline.store import migrate
from batchline.store.session import Session, StoreUnavailable
from tests.support.builders import sql as query
from tests.support.processes import (
    batchline,
    logged,
    read_lines,
    simulated,
    stop,
    wait_for_executions,
    write_requests,
)
from tests.support.serving import serving
from tests.support.waiting import LIMIT, wait_for

LINES = 400
# Milliseconds. Four at a time take ten seconds, so that all is not over before the database has changed.
LATENCY = "100"
Moment = Callable[[str], AbstractContextManager[None]]


@contextmanager
def altered(database: str, change: str, back: str) -> Iterator[None]:
    """A change to the database and the end of all its connections; then the way back.

    A setting holds for connections that are opened after it. So those that were opened meanwhile keep it,
    and it is for their owners to open others.
    """
    name = str(conninfo_to_dict(database)["dbname"])
    alter = sql.SQL("ALTER DATABASE {} ").format(sql.Identifier(name))
    with psycopg.connect(make_conninfo(database, dbname="postgres"), autocommit=True) as connection:
        connection.execute(alter + sql.SQL(change))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            yield
        finally:
            connection.execute(alter + sql.SQL(back))


def read_only(database: str) -> AbstractContextManager[None]:
    setting = "SET default_transaction_read_only = "
    return altered(database, f"{setting}on", f"{setting}off")


def closed(database: str) -> AbstractContextManager[None]:
    """It ends connections and refuses others, as while it stops, starts, or has too many."""
    return altered(database, "ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true")


@pytest.mark.parametrize(
    ("moment", "reason"),
    [(read_only, "read-only transaction"), (closed, "not currently accepting connections")],
)
def test_a_worker_waits_and_continues(database_url: str, tmp_path: Path, moment: Moment, reason: str) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs, log = write_requests(tmp_path / "in.jsonl", LINES), tmp_path / "log"

    def completed() -> bool:
        return bool(
            json.loads(batchline("status", batch, "--json", *location).stdout)["status"] == "completed"
        )

    with simulated("--latency", LATENCY) as upstream:
        submitted = batchline("submit", str(inputs), "--upstream", upstream.url, "--json", *location)
        batch = json.loads(submitted.stdout)["id"]
        with logged(log, "worker", "-c", "4", *location) as worker:
            wait_for_executions(upstream, 20)
            with moment(database_url):
                wait_for("a worker that says why it waits", lambda: reason in log.read_text())
            wait_for("the end of the batch", completed)
            assert worker.poll() is None, log.read_text()
            stop(worker)
            assert worker.returncode == 0, log.read_text()
        assert upstream.stats()["keys_executed_twice"] == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("before", [True, False], ids=["before it begins", "while it runs"])
def test_a_run_waits_and_continues(database_url: str, tmp_path: Path, before: bool) -> None:
    inputs, output, log = write_requests(tmp_path / "in.jsonl", LINES), tmp_path / "out", tmp_path / "log"
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))

    def waits() -> bool:
        return "read-only transaction" in log.read_text()

    with simulated("--latency", LATENCY) as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "4", "-o", str(output), *location)
        with ExitStack() as moment, ExitStack() as running:
            if before:
                moment.enter_context(read_only(database_url))
            run = running.enter_context(logged(log, *command))
            if not before:
                wait_for_executions(upstream, 20)
                moment.enter_context(read_only(database_url))
            wait_for("a run that says why it waits", waits)
            moment.close()
            run.wait(LIMIT)
        assert run.returncode == 0, log.read_text()
        assert upstream.stats()["keys_executed_twice"] == 0
    assert [line["custom_id"] for line in read_lines(output)] == [f"q-{number}" for number in range(LINES)]


def test_readyz_reports_a_read_only_database_until_it_is_writable(database_url: str, tmp_path: Path) -> None:
    with serving(database_url, tmp_path) as server, server.http() as client:
        assert client.get("/readyz").status_code == 200
        key = server.key()
        with read_only(database_url):
            wait_for(
                "a server that has noticed", lambda: client.get("/readyz").json()["database"] == "read-only"
            )
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
            with server.http(key) as caller:
                refused = caller.post("/v1/uploads", json=UPLOAD)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert client.get("/readyz").status_code == 200, "the connections that were opened meanwhile are old"


UPLOAD = {"filename": "in.jsonl", "purpose": "batch", "bytes": 10, "mime_type": "application/jsonl"}


async def test_a_connection_that_the_server_ends_for_any_reason_is_opened_again(database_url: str) -> None:
    """Such as that a transaction was idle for too long, which is no operational error to the driver."""

    async def idle(session: Session) -> None:
        async with session.transaction() as connection:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 1")
            while True:
                await asyncio.sleep(0.01)
                await connection.execute("SELECT 1")

    async with Session(database_url, "idle") as session:
        # The client may find the connection closed before it has read the server's last message.
        with pytest.raises(StoreUnavailable, match=r"idle-in-transaction|closed the connection"):
            await idle(session)
        assert await query(session, "SELECT 1") == [(1,)]


@pytest.fixture(scope="module")
def standby() -> Iterator[str]:
    """Read-only for good: a copy of a server that waits for what its primary writes."""
    settings = {"wal_level": "replica", "fsync": "off"}
    with tempfile.TemporaryDirectory(prefix="batchline-standby-") as folder:
        with EmbeddedPostgres.start(Path(folder), settings=settings) as primary:
            migrate.up(primary.url)
        (Path(folder) / "postgres" / "standby.signal").touch()
        with EmbeddedPostgres.start(Path(folder), settings=settings) as server:
            yield server.url


@pytest.mark.parametrize("command", ["worker", "serve", "run", "submit", "keys", "migrate"])
def test_on_a_standby_a_command_says_so_in_one_sentence(standby: str, tmp_path: Path, command: str) -> None:
    inputs = str(write_requests(tmp_path / "in.jsonl", 1))
    upstream = ("--upstream", "http://127.0.0.1:9/v1")
    arguments = {
        "worker": ("worker", *upstream),
        "serve": ("serve", "--port", "0", *upstream),
        "run": ("run", inputs, *upstream),
        "submit": ("submit", inputs, *upstream),
        "keys": ("keys", "create", "me"),
        "migrate": ("migrate", "down", "base"),
    }
    location = ("--database", standby, "--data-dir", str(tmp_path / "data"))
    done = batchline(*arguments[command], *location)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "read-only" in done.stderr
    assert "give the primary's address with --database" in done.stderr


@pytest.mark.parametrize("command", [("list",), ("doctor",), ("keys", "list"), ("migrate", "status")])
def test_a_standby_can_be_read(standby: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = batchline(*command, "--database", standby, "--data-dir", str(tmp_path / "data"))
    said = "no batches; `batchline run` and `batchline submit` create them\n" if command == ("list",) else ""
    assert (done.returncode, done.stderr) == (0, said)
