"""A backup of a live database is restored, and batches that were in flight end.

With the commands of docs/how-to/backup.md: a logical and a physical backup while a server and a worker are at
work, and a restore after more has happened that the backup does not know.
"""

import json
import os
import pwd
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import psycopg
import pytest

from tests.support.gated_upstream import GatedUpstream, gated_upstream
from tests.support.processes import batchline, stop, working, write_requests
from tests.support.server_process import Served, ended, served, submit
from tests.support.tcp_postgres import DATABASE, PASSWORD, USER, TcpPostgres, run_program, tcp_postgres
from tests.support.waiting import wait_for

LINES = 40
BEFORE = 20
AT_ONCE = 4
Restore = Callable[[], None]


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


def by_pg_dump(postgres: TcpPostgres, folder: Path) -> Restore:
    """The page's commands for a logical backup."""
    dump = folder / "batchline.dump"
    run_program("pg_dump", "--format=custom", f"--file={dump}", postgres.url)

    def restore() -> None:
        with psycopg.connect(postgres.server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {DATABASE}".encode())
            connection.execute(f"CREATE DATABASE {DATABASE} OWNER {USER}".encode())
        run_program("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={postgres.url}", str(dump))

    return restore


def by_pg_basebackup(postgres: TcpPostgres, folder: Path) -> Restore:
    """The page's command for a physical backup."""
    copy = folder / "copy"
    run_program("pg_basebackup", f"--dbname={postgres.server.url}", f"--pgdata={copy}", "--checkpoint=fast")

    def restore() -> None:
        data = postgres.server.folder / "data"
        postgres.server.stop()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            for parent, _, names in os.walk(data):
                for path in (parent, *(f"{parent}/{name}" for name in names)):
                    os.chown(path, account.pw_uid, account.pw_gid)
        postgres.server.start()

    return restore


@contextmanager
def at_work(postgres: TcpPostgres, folder: Path, upstream: GatedUpstream) -> Iterator[Served]:
    """A server and a worker. Both end when the context does, as `systemctl stop` would have it."""
    url = ("--upstream", upstream.url)
    with (
        served(postgres.url, folder, "--no-worker", *url) as server,
        # A lease that no slow machine lets end, even while PostgreSQL is restored.
        working(
            postgres.url, folder / "data", *url, "--concurrency", str(AT_ONCE), "--lease", "300"
        ) as worker,
    ):
        yield server
        stop(worker)


@pytest.mark.parametrize("method", [by_pg_dump, by_pg_basebackup])
def test_batches_in_flight_end_after_a_restore(
    method: Callable[[TcpPostgres, Path], Restore], tmp_path: Path
) -> None:
    first, second = (write_requests(tmp_path / f"{name}.jsonl", LINES) for name in ("first", "second"))
    with tcp_postgres({"jit": "off"}) as postgres, gated_upstream() as upstream:
        location = ("--database", postgres.url, "--data-dir", str(tmp_path / "data"))
        assert batchline("migrate", "up", *location).returncode == 0
        with at_work(postgres, tmp_path, upstream) as server, server.client() as client:
            key, leaving = server.key, a_key(location, "leaves the company")
            done = ended(client, submit(client, first))
            upstream.allow(LINES + BEFORE)
            in_flight = submit(client, second)
            wait_for("half of the batch", lambda: completed(client, in_flight.id) == BEFORE)
            wait_for("requests in flight", lambda: upstream.keys.total() == LINES + BEFORE + AT_ONCE)
            restore = method(postgres, tmp_path)

            # What the backup does not know: the end of a batch, another batch, a new key, a revoked key.
            assert batchline("keys", "revoke", leaving["id"], *location).returncode == 0
            unknown = a_key(location, "new here")["key"]
            upstream.allow()
            assert ended(client, in_flight).status == "completed"
            forgotten = ended(client, submit(client, first))
            assert upstream.keys.total() == 3 * LINES
        restore()

        with at_work(postgres, tmp_path, upstream) as server, server.client(key) as client:
            assert "admin key" not in "".join(server.said), "the keys of the backup are known"
            assert answers(client, done.id) == answers(client, in_flight.id)
            with pytest.raises(openai.NotFoundError):
                client.batches.retrieve(forgotten.id)
            with server.client(unknown) as stranger, pytest.raises(openai.AuthenticationError):
                stranger.batches.list()
            # A key that was revoked after the backup works again: the page says to revoke it again.
            with server.client(leaving["key"]) as back:
                back.batches.list()
            # Lines that were finished in the backup are not sent again. All others are, under the same keys,
            # so an upstream that knows keys runs none of them twice.
            assert upstream.keys.total() == 3 * LINES + (LINES - BEFORE)
            assert sorted(upstream.keys.values()) == [1] * (2 * LINES + BEFORE) + [2] * (LINES - BEFORE)
            # The database gives out the numbers of rows again that it had given out before; nothing collides.
            again = ended(client, submit(client, first))
            assert answers(client, again.id) == answers(client, done.id)
        examined = batchline("doctor", *location)
        assert examined.returncode == 0, examined.stdout
        assert examined.stdout.startswith(f"clean: 3 batches, 3 lanes, {3 * LINES} results, 0 spans")


def a_key(location: tuple[str, ...], name: str) -> dict[str, str]:
    created = batchline("keys", "create", name, "--json", *location)
    assert created.returncode == 0, created.stderr
    found: dict[str, str] = json.loads(created.stdout)
    return found


def completed(client: openai.OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts.completed


def answers(client: openai.OpenAI, batch_id: str) -> list[str]:
    """What the lines of a batch were answered, in input order."""
    over = ended(client, client.batches.retrieve(batch_id))
    assert (over.status, over.error_file_id) == ("completed", None)
    assert over.output_file_id is not None
    lines = [json.loads(line) for line in client.files.content(over.output_file_id).text.splitlines()]
    found = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]
    assert found == [f"You said: Say {nth}." for nth in range(LINES)]
    return found
