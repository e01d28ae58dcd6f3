"""Workers and servers of two versions run side by side while the schema is upgraded.

The next version is a copy of this one with one more migration (tests/support/next_version.py).
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from batchline.store import schema
from tests.support.builders import a_database
from tests.support.gated_upstream import GatedUpstream, gated_upstream
from tests.support.next_version import NEXT, NextVersion
from tests.support.processes import batchline, stop, working, write_requests
from tests.support.server_process import ended, served, submit
from tests.support.waiting import wait_for

LINES = 40


@pytest.fixture
def upstream() -> Iterator[GatedUpstream]:
    with gated_upstream() as found:
        yield found


def test_a_batch_in_flight_survives_the_upgrade_and_both_versions_work_on_it(
    database_url: str, tmp_path: Path, upstream: GatedUpstream
) -> None:
    new = NextVersion.make(tmp_path / "next")
    lines = write_requests(tmp_path / "in.jsonl", LINES)
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    # A lease that no slow machine lets end: else lines would be sent twice, and rightly.
    options = ("--upstream", upstream.url, "--concurrency", "4", "--lease", "300")
    with ExitStack() as running:
        server = running.enter_context(
            served(database_url, tmp_path, "--no-worker", "--upstream", upstream.url)
        )
        client = running.enter_context(server.client())
        upstream.allow(0)
        old = running.enter_context(working(database_url, tmp_path / "data", *options))
        batch = submit(client, lines)
        wait_for("requests of the old worker", lambda: upstream.keys.total() == 4)

        early = new.run("worker", *location, *options)
        assert early.returncode == 2
        assert f"needs {NEXT}; run `batchline migrate up`" in early.stderr
        migrated = new.run("migrate", "up", "--rolling", *location)
        assert (migrated.returncode, migrated.stderr) == (0, "")
        assert migrated.stdout == f"schema batchline: version {NEXT}; newest version: {NEXT}\n"

        young = running.enter_context(new.working("worker", *location, *options))
        wait_for("requests of the new worker", lambda: upstream.keys.total() == 8)
        upstream.allow()
        check_ended(client, batch.id, upstream, LINES)

        # Only the old worker, with a batch of the old server that was created on the new schema.
        stop(young)
        check_ended(client, submit(client, lines).id, upstream, 2 * LINES)
        # An old worker that is restarted meanwhile, by a node that was drained.
        stop(old)
        running.enter_context(working(database_url, tmp_path / "data", *options))
        # With a batch of the new server.
        with (
            served(
                database_url,
                tmp_path,
                *("--no-worker", "--upstream", upstream.url),
                **new.environment(),
            ) as new_server,
            new_server.client(server.key) as new_client,
        ):
            check_ended(new_client, submit(new_client, lines).id, upstream, 3 * LINES)
    examined = new.run("doctor", *location)
    assert examined.returncode == 0, examined.stdout
    assert examined.stdout.startswith(f"clean: 3 batches, 3 lanes, {3 * LINES} results, 0 spans")


def check_ended(client: openai.OpenAI, batch_id: str, upstream: GatedUpstream, sent: int) -> None:
    over = ended(client, client.batches.retrieve(batch_id))
    assert over.status == "completed"
    assert over.output_file_id is not None
    outputs = [json.loads(line) for line in client.files.content(over.output_file_id).text.splitlines()]
    answers = [line["response"]["body"]["choices"][0]["message"]["content"] for line in outputs]
    assert answers == [f"You said: Say {nth}." for nth in range(LINES)]
    assert (upstream.keys.total(), max(upstream.keys.values())) == (sent, 1), "every line is sent once"


def test_an_upgrade_that_running_programs_would_not_survive_changes_nothing(
    database_url: str, tmp_path: Path
) -> None:
    new = NextVersion.make(tmp_path / "next", compatible=False)
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    refused = new.run("migrate", "up", "--rolling", *location)
    assert refused.returncode == 2
    assert f"stays at version {schema.HEAD}" in refused.stderr
    assert "stop all servers and workers, then run `batchline migrate up` without --rolling" in refused.stderr
    assert schema.status(database_url).current == schema.HEAD
    assert batchline("worker", "--drain", *location).returncode == 0

    assert new.run("migrate", "up", *location).returncode == 0
    late = batchline("worker", "--drain", *location)
    assert late.returncode == 2
    assert f"is at version {NEXT}" in late.stderr


def test_a_new_database_needs_no_version_before(server_url: str, tmp_path: Path) -> None:
    with a_database(server_url) as empty:
        location = ("--database", empty, "--data-dir", str(tmp_path / "data"))
        done = batchline("migrate", "up", "--rolling", *location)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_older_program_that_is_deployed_again_leaves_a_newer_schema_as_it_is(
    database_url: str, tmp_path: Path
) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    assert NextVersion.make(tmp_path / "next").run("migrate", "up", *location).returncode == 0
    done = batchline("migrate", "up", "--rolling", *location)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"schema batchline: version {NEXT}; newest version: {schema.HEAD}\n"
