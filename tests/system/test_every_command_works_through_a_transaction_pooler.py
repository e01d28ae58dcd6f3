"""Every command works through PgBouncer in transaction mode, also one that keeps no prepared statements.

Without BATCHLINE_TEST_PGBOUNCER this is Debian's, version 1.18, which keeps none.
"""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from batchline.cli.main import command_line
from batchline.store.session import Session
from tests.support import external
from tests.support.builders import sql
from tests.support.old_database import OldDatabase
from tests.support.pgbouncer import pooled
from tests.support.processes import batchline, read_lines, simulated, start, stop, write_requests

SETTINGS = """
[[upstreams]]
name = "cluster"
base_url = "{url}"
models = ["m"]

[packs]
kubevirt = {{ upstream = "cluster" }}

[stages.ask]
model = "m"
prompt = "{{{{ text }}}}"
"""
MACHINE = {"namespace": "test", "name": "a", "cpu": 1, "memory": "1Gi", "image": "fedora:42"}
NOWHERE = ("--upstream", "http://127.0.0.1:9/v1")


@pytest.fixture
def pooler(database_url: str, tmp_path: Path) -> Iterator[str]:
    with pooled(database_url, tmp_path / "pgbouncer") as url:
        yield url


def test_short_commands_share_server_connections(pooler: str, tmp_path: Path) -> None:
    """Each prepared its first statement under the same name; the second was refused, or ran the first's."""
    location = ("--database", pooler, "--data-dir", str(tmp_path / "data"))
    inputs = str(write_requests(tmp_path / "in.jsonl", 3))
    for command in (
        ("submit", inputs, *NOWHERE),
        ("list",),
        ("doctor",),
        ("keys", "list"),
        ("limits", "status"),
        ("audit",),
    ):
        done = batchline(*command, *location)
        assert (done.returncode, done.stderr) == (0, ""), command


class Commands:
    """Runs commands through the pooler and notes which."""

    def __init__(self, pooler: str, folder: Path, upstream: str) -> None:
        config = folder / "batchline.toml"
        config.write_text(SETTINGS.format(url=upstream))
        self.environment = {
            "BATCHLINE_DATABASE_URL": pooler,
            "BATCHLINE_DATA_DIR": str(folder / "data"),
            "BATCHLINE_CONFIG": str(config),
            "BATCHLINE_UPSTREAM": upstream,
        }
        self.tried: set[str] = set()

    def __call__(self, name: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        self.tried.add(name)
        done = batchline(*name.split(), *arguments, **self.environment)
        assert done.returncode in codes, (name, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (name, done.stderr)
        return done.stdout

    def made(self, name: str, *arguments: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self(name, *arguments, "--json"))
        return document


def every_command() -> set[str]:
    """All commands that use a database: `list`, `keys list` and so on."""

    def leaves(command: Any, name: str) -> set[str]:
        below = getattr(command, "commands", None)
        if below is None:
            return {name}
        return {leaf for each, sub in below.items() for leaf in leaves(sub, f"{name} {each}".strip())}

    return leaves(typer.main.get_command(command_line()), "") - {"simulate", "settings", "check"}


@pytest.mark.attack
@pytest.mark.timeout(900)
def test_every_command_works(pooler: str, database_url: str, tmp_path: Path) -> None:
    with simulated() as upstream:
        command = Commands(pooler, tmp_path, upstream.url)
        run_batches(command, tmp_path)
        govern(command, tmp_path)
        made = command.made("keys create", "ann")
        command("keys list")
        command("keys revoke", made["id"])
        manage_tenants(command)
        serve(command)
        show(command)
        command("doctor")
        adopt(command, database_url)
    command("migrate status")
    command("migrate down", "base")
    command("migrate up")
    assert command.tried == every_command()


def adopt(command: Commands, database_url: str) -> None:
    """There and back, with an end."""
    old = OldDatabase(database_url, "fusillade")
    batch = old.batch(old.file(30))
    old.end(batch, range(1, 20), "completed")
    command("adopt prepare")
    command("adopt cutover")
    command("adopt verify")
    command("adopt status")
    command("adopt rollback")
    assert old.states(batch) == {"completed": 19, "pending": 11}
    command("adopt finish")
    old.close()


def run_batches(command: Commands, folder: Path) -> None:
    inputs = [str(write_requests(folder / f"{count}.jsonl", count)) for count in (200, 30, 20)]
    output = folder / "out.jsonl"
    command("run", inputs[0], "-o", str(output), "--on-end-command", "true")
    assert len(read_lines(output)) == 200
    second = str(command.made("submit", inputs[1])["id"])
    command("pause", second)
    command("change", second, "--priority", "5", "--concurrency", "4")
    command("resume", second)
    command("worker", "--drain", "--on-end-command", "true")
    command("watch", second)
    assert [each["state"] for each in command.made("hooks")["data"]] == ["delivered"] * 2
    assert command.made("schedules")["data"] == []
    assert command.made("status", second)["status"] == "completed"
    command("results", second)
    third = str(command.made("submit", inputs[2])["id"])
    command("cancel", third)
    command("worker", "--drain")
    assert command.made("retry", third)["retried"] == 20
    assert len(command.made("list")["data"]) == 3
    assert command.made("attempts", second, "q-1")["state"] == "completed"
    assert command.made("why", second, "q-1")["state"] == "completed"
    command("delete", second)
    assert len(command.made("list")["data"]) == 2
    assert len(command.made("du")["batches"]) == 2
    assert command.made("prune", "--older-than", "7d", "--yes")["deleted"] == 0
    rows = folder / "rows.csv"
    rows.write_text("text\none\ntwo\n")
    command("pipeline", str(rows), "--stage", "ask")


def govern(command: Commands, folder: Path) -> None:
    """Where a batch is in no state for it, a command is refused with 1: that too is the database's word."""
    items = folder / "items.json"
    items.write_text(json.dumps([MACHINE]))
    command("limits set", "ann", "--parents", "9", "--children", "9", "--cooldown", "0", "--reason", "a test")
    command("limits exempt", "ann", "--for", "1h", "--reason", "a test")
    command("limits status")
    command("ops list")
    submit = ("vm_create", str(items), "--as", "ann")
    held = command.made("ops submit", *submit, "--hold")["batch_id"]
    digest = command.made("ops show", held)["content_digest"]
    command("ops approve", held, "--as", "bob", "--digest", digest)
    command("ops pause", held, codes=(0, 1))
    command("ops resume", held, codes=(0, 1))
    command("ops release", held, codes=(0, 1))
    command("ops cancel", held)
    command("ops retry", held, codes=(0, 1))
    command("ops reject", command.made("ops submit", *submit)["batch_id"], "--reason", "no")
    command("ops show", held)
    command("ops batches")
    command("audit")


def manage_tenants(command: Commands) -> None:
    command("keys create", "eve", "--tenant", "another")
    command("tenants quota", "another", "1GB")
    assert [each["name"] for each in command.made("tenants list")["data"]] == ["another", "default"]
    command("tenants usage")
    command("tenants erase", "another", "--yes")


def show(command: Commands) -> None:
    command.tried.add("ui")
    process = start("ui", "--no-browser", **command.environment)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("open ").strip()
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"Batchline" in answer.read()
    finally:
        _, said = stop(process)
    assert process.returncode == 0, said
    assert "Traceback" not in said


def serve(command: Commands) -> None:
    command.tried.add("serve")
    process = start("serve", "--port", "0", "--no-auth", **command.environment)
    try:
        assert process.stdout is not None
        listening = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert listening is not None
        with urllib.request.urlopen(f"{listening[0]}/readyz", timeout=60) as answer:
            assert json.load(answer)["status"] == "ready"
        with urllib.request.urlopen(f"{listening[0]}/v1/batches", timeout=60) as answer:
            assert json.load(answer)["data"]
    finally:
        _, said = stop(process)
    assert process.returncode == 0, said
    assert "Traceback" not in said


def keeps_statements() -> bool:
    version = subprocess.run([external.pgbouncer(), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"PgBouncer (\d+)\.(\d+)", version.stdout)
    assert found is not None
    return (int(found[1]), int(found[2])) >= (1, 21)


async def prepared(url: str) -> set[str]:
    """The names of the statements that the server has after the same one was run some times.

    In one transaction at the end, so that it is one server connection that is asked.
    """
    async with Session(url, "test") as session:
        for _ in range(10):
            await sql(session, "SELECT %(number)s + 1", number=1)
        return {name for (name,) in await sql(session, "SELECT name FROM pg_prepared_statements")}


async def test_a_direct_connection_prepares(database_url: str) -> None:
    assert await prepared(database_url) == {"_pg3_0"}


async def test_nothing_is_prepared_under_a_name_that_the_pooler_passes_through(
    database_url: str, tmp_path: Path
) -> None:
    """Another client's statement of the same name would run instead, if the parameters fit."""
    # One server connection, so that it is the one that is asked.
    more = (
        "default_pool_size = 1\nmax_prepared_statements = 0"
        if keeps_statements()
        else "default_pool_size = 1"
    )
    with pooled(database_url, tmp_path / "pgbouncer", more) as url:
        assert await prepared(url) == set()


async def test_where_the_pooler_keeps_statements_they_are_prepared(database_url: str, tmp_path: Path) -> None:
    if not keeps_statements():
        pytest.skip("PgBouncer keeps prepared statements from 1.21 on: name one in BATCHLINE_TEST_PGBOUNCER")
    more = "default_pool_size = 1\nmax_prepared_statements = 200"
    with pooled(database_url, tmp_path / "pgbouncer", more) as url:
        names = await prepared(url)
    assert names
    assert all(name.startswith("PGBOUNCER_") for name in names)


async def test_two_clients_of_one_server_connection_run_their_own_statements(
    database_url: str, tmp_path: Path
) -> None:
    with pooled(database_url, tmp_path / "pgbouncer", "default_pool_size = 1") as url:
        async with Session(url, "one") as one, Session(url, "other") as other:
            for _ in range(10):
                assert await sql(one, "SELECT %(number)s + 1", number=1) == [(2,)]
                assert await sql(other, "SELECT %(number)s - 1", number=1) == [(0,)]
