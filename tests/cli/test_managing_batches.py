"""Batches are listed in 80 columns, named in short, deleted by age, and measured."""

import json
import re
from pathlib import Path

import psycopg
import pytest

from tests.support.processes import (
    batchline,
    kill,
    simulated,
    start,
    submit,
    wait_for_executions,
    write_requests,
)
from tests.support.terminals import on_terminal

NOWHERE = "http://user:secret@127.0.0.1:9/v1"


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def end(batch: str, database: str, *, hours_ago: int) -> None:
    """The batch ended so long ago."""
    with psycopg.connect(database) as connection:
        connection.execute(
            """
            UPDATE batchline.batches
            SET finalizing_at = now(), completed_at = now() - make_interval(hours => %s)
            WHERE id = %s::uuid
            """,
            (hours_ago, batch.removeprefix("batch_")),
        )


@pytest.mark.parametrize("columns", [80, 200])
def test_a_list_fits_the_terminal_and_marks_what_run_has_left(
    tmp_path: Path, location: tuple[str, ...], columns: int
) -> None:
    inputs = write_requests(tmp_path / f"{'questions-' * 8}.jsonl", 300)
    with simulated("--latency", "50") as upstream:
        process = start("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location)
        wait_for_executions(upstream, 8)
        process.terminate()
        process.communicate(timeout=60)
        submit(write_requests(tmp_path / "two.jsonl", 2, ("a", "b")), NOWHERE, *location)
        with on_terminal("list", *location, columns=columns) as terminal:
            header, submitted, left, *_ = terminal.until_ended()
    assert header.split() == ["id", "file", "model", "upstream", "state", "done", "failed", "age"]
    assert all(len(line) <= columns for line in (header, submitted, left))
    assert re.fullmatch(
        r"[0-9a-f]{8,14} +two\.jsonl +several +127\.0\.0\S+ +in progress +0\.0 % +0 +\d+ s", submitted
    )
    assert re.search(r" questio\S+ +sim-small +127\.0\.0\S+ +left by run +\d+\.\d % +0 +\d+ s$", left)
    said = terminal.raw.decode()
    assert (
        f"was left by run; continue with\r\n  batchline run {inputs} --upstream {upstream.url} -c 4" in said
    )
    assert "or with `batchline worker --unfinished-runs`" in said
    assert "secret" not in said


def test_a_run_that_is_at_work_is_not_left(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with simulated("--latency", "100") as upstream:
        process = start("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location)
        wait_for_executions(upstream, 8)
        listed = json.loads(batchline("list", "--json", *location).stdout)["data"]
        kill(process)
    assert [(each["input_filename"], each["left_by_run"]) for each in listed] == [("in.jsonl", False)]


def test_a_batch_is_found_by_its_first_digits_and_by_its_age(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    first, second = submit(inputs, NOWHERE, *location), submit(inputs, NOWHERE, *location)
    listed = json.loads(batchline("list", "--json", *location).stdout)["data"]
    assert [each["id"] for each in listed] == [second, first]

    def named(text: str) -> str:
        done = batchline("status", text, "--json", *location)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    assert [named(each["short_id"]) for each in listed] == [second, first]
    assert named(f"batch_{listed[0]['short_id']}") == second
    assert named(listed[1]["short_id"].upper()) == first
    assert (named("@1"), named("@2")) == (second, first)
    assert json.loads(batchline("cancel", "@2", "--json", *location).stdout)["id"] == first
    assert "q-0" in batchline("attempts", "@1", "q-0", *location).stdout
    assert "q-0" in batchline("why", "@1", "q-0", *location).stdout
    assert "it is in_progress" in batchline("retry", "@1", *location).stderr
    assert batchline("doctor", "@1", *location).returncode == 0
    page = json.loads(batchline("list", "--after", "@1", "--json", *location).stdout)["data"]
    assert [each["id"] for each in page] == [first]
    assert batchline("delete", "@1", "--force", *location).returncode == 0
    assert named("@1") == first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@9", "there is no batch @9"),
        ("@0", "'@0' is not a batch id; give the id, its first digits, or @1"),
        ("ffffffff", "there is no batch ffffffff"),
        ("", "'' is not a batch id"),
        ("latest", "'latest' is not a batch id"),
        ("0" * 33, "is not a batch id"),
    ],
)
def test_a_name_of_no_batch_is_refused(location: tuple[str, ...], text: str, said: str) -> None:
    done = batchline("status", text, *location)
    assert done.returncode == 2
    assert said in done.stderr.replace("\n", " ")


def test_an_ambiguous_id_is_refused_with_the_candidates(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    made = [submit(inputs, NOWHERE, *location) for _ in range(2)]
    # The first digits are the time, and these stay the same for years.
    done = batchline("status", made[0].removeprefix("batch_")[:4], *location)
    assert done.returncode == 2
    assert "is ambiguous" in done.stderr
    assert all(each.removeprefix("batch_") in done.stderr.replace("\n", "") for each in made)


def test_governed_batches_are_counted_among_themselves(tmp_path: Path, location: tuple[str, ...]) -> None:
    submit(write_requests(tmp_path / "in.jsonl", 2), NOWHERE, *location)
    done = batchline("ops", "show", "@1", *location)
    assert done.returncode == 2
    assert "there is no batch @1; `batchline ops batches` shows all" in done.stderr
    done = batchline("watch", "@2", *location)
    assert done.returncode == 2
    assert "`batchline list` shows all; governed ones are in `batchline ops batches`" in done.stderr


def test_prune_deletes_what_ended_long_ago_and_nothing_else(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    old, young, running = (submit(inputs, NOWHERE, *location) for _ in range(3))
    end(old, database_url, hours_ago=200)
    end(young, database_url, hours_ago=1)

    def remaining() -> set[str]:
        return {each["id"] for each in json.loads(batchline("list", "--json", *location).stdout)["data"]}

    refused = batchline("prune", "--older-than", "7d", *location)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    tried = batchline("prune", "--older-than", "7d", "--dry-run", *location)
    assert (tried.stdout, tried.returncode) == (f"{old}\n", 0)
    assert remaining() == {old, young, running}
    done = batchline("prune", "--older-than", "7d", "--yes", "--json", *location)
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["batches"], json.loads(done.stdout)["deleted"]) == ([old], 1)
    assert remaining() == {young, running}
    assert batchline("prune", "--older-than", "soon", *location).returncode == 2


def test_prune_asks_on_a_terminal(tmp_path: Path, location: tuple[str, ...], database_url: str) -> None:
    batch = submit(write_requests(tmp_path / "in.jsonl", 3), NOWHERE, *location)
    end(batch, database_url, hours_ago=200)
    with on_terminal("prune", "--older-than", "7d", *location) as terminal:
        terminal.wait_until("the question", lambda lines: lines[-1].startswith("delete 1 batch that ended"))
        terminal.type("n\n")
        assert "nothing was deleted" in "\n".join(terminal.until_ended())
    assert terminal.process.returncode == 2
    with on_terminal("prune", "--older-than", "7d", *location) as terminal:
        terminal.wait_until("the question", lambda lines: lines[-1].startswith("delete 1 batch that ended"))
        terminal.type("y\n")
        assert "deleted 1 batch, " in "\n".join(terminal.until_ended())
    assert terminal.process.returncode == 0


def test_du_says_what_takes_room(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    with simulated() as upstream:
        assert batchline("run", str(inputs), "--upstream", upstream.url, *location).returncode == 0
    found = json.loads(batchline("du", "--json", *location).stdout)
    (batch,) = found["batches"]
    assert (batch["lines"], batch["input_bytes"]) == (30, inputs.stat().st_size)
    assert batch["output_bytes"] == (tmp_path / "in.output.jsonl").stat().st_size == found["stored_bytes"]
    assert found["database_bytes"] == sum(found["tables"].values()) > 0
    assert found["data_folder_bytes"] is None, "the database is not embedded"
    with on_terminal("du", *location, columns=200) as terminal:
        database, files, _, header, row = terminal.until_ended()
    assert database.startswith("database ")
    assert files.startswith("files ")
    assert header.split() == ["id", "file", "lines", "input", "output", "ended"]
    assert re.search(r" in\.jsonl +30 +\d\.\d kB +\d+ kB +\d+ s ago$", row)
