"""`batchline adopt` as a user sees it: what it prints, its exit codes, and its refusals."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import on, sql
from tests.support.old_database import OldDatabase
from tests.support.processes import batchline


@pytest.fixture
def old(database_url: str) -> Iterator[OldDatabase]:
    database = OldDatabase(database_url, "fusillade")
    yield database
    database.close()


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path))


def said(*arguments: str) -> str:
    done = batchline("adopt", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str) -> str:
    done = batchline("adopt", *arguments)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.timeout(600)
def test_all_phases_print_what_they_would_do_and_what_they_did(
    old: OldDatabase, location: tuple[str, ...]
) -> None:
    batch = old.batch(old.file(12))
    old.end(batch, range(1, 5), "completed")
    old.end(batch, (6,), "processing")
    assert "would copy 12 lines and 4 results in about" in said("prepare", "--dry-run", *location)
    assert "copied 12 lines and 4 results in" in said("prepare", *location)
    rehearsed = said("cutover", "--dry-run", *location)
    assert "would adopt 1 batch, 1 of them unfinished" in rehearsed
    assert "old tables would be locked for" in rehearsed
    done = said("cutover", *location)
    assert "adopted 1 batch, " in done
    assert "in flight: 1 request (1 processing), which may have been sent, and run again:" in done
    assert f"batch_{batch.hex} line 6 line-6: processing" in done
    assert "would compare the states of 12 requests" in said("verify", "--dry-run", *location)
    assert "clean: 1 batch; compared 12 lines and 4 results (all)" in said("verify", *location)
    assert "(one in 2)" in said("verify", "--one-in", "2", *location)
    assert "phase adopted: schema public, shape fusillade" in said("status", *location)
    assert "would write back 0 results of 1 batch; 8 requests" in said("rollback", "--dry-run", *location)
    assert "the old daemons can start" in said("rollback", *location)
    assert old.states(batch) == {"completed": 4, "pending": 8}
    said("cutover", *location)
    assert "would drop batch_requests_archive, requests" in said("finish", "--drop", "--dry-run", *location)
    assert "there is no way back" in said("finish", "--drop", *location)
    assert old.run("SELECT to_regclass('public.requests')") == [(None,)]


def test_verify_exits_with_1_and_names_what_differs(
    old: OldDatabase, location: tuple[str, ...], database_url: str
) -> None:
    old.batch(old.file(3))
    said("prepare", *location)
    said("cutover", *location)
    on(database_url, lambda db: sql(db, "UPDATE batchline.lines SET body = '' WHERE line_no = 2"))
    done = batchline("adopt", "verify", *location)
    assert done.returncode == 1
    assert "1 lines differ from their templates, for example 'line-2'" in done.stderr
    assert "1 finding: " in done.stdout


def test_a_phase_before_its_time_is_refused(old: OldDatabase, location: tuple[str, ...]) -> None:
    old.batch(old.file(2))
    assert "no adoption has begun" in said("status", *location)
    for phase in ("cutover", "rollback", "verify", "finish"):
        assert "`batchline adopt prepare`" in refused(phase, *location) or phase == "rollback"
    said("prepare", *location)
    assert "rollback is not possible: the adoption is in phase 'prepared'" in refused("rollback", *location)
    said("cutover", *location)
    assert "the cutover is done" in refused("cutover", *location)
    assert "the cutover is done" in refused("prepare", *location)


def test_refusals_list_what_is_in_the_way(old: OldDatabase, location: tuple[str, ...]) -> None:
    old.batch(old.file(2))
    old.run(
        "INSERT INTO daemons VALUES (gen_random_uuid(), 'running', 'h', 1, '1', '{}', now(),"
        " now() + interval '1 hour', NULL)"
    )
    said("prepare", *location)
    message = refused("cutover", *location)
    assert "1 old daemons were active within the last 60 s; stop them" in message
    assert "  daemon " in message
    details = json.loads(batchline("adopt", "cutover", "--json", *location).stdout)["error"]["details"]
    assert len(details) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("prepare", "--source", "nowhere"), "schema nowhere has no tables that Batchline can adopt"),
        (("cutover", "--grace", "soon"), "give a number and a unit"),
        (("cutover", "--upstream", "gopher:x"), "gopher"),
    ],
)
def test_bad_options_get_a_clear_error(
    location: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    assert message in refused(*options, *location)
