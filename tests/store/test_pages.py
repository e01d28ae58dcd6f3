"""Pages of lines: byte for byte what the finished file has, in input order, whatever fits into a page."""

from uuid import UUID

import pytest

from batchline.store import outputs, pages, spans
from batchline.store.pages import Pages
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, complete, completed, failed, sql, take

ROOMS = [1, 30, 200, pages.ROOM]


async def all_of(db: Session, lines: Pages) -> bytes:
    found = b""
    while (page := await lines.read(db)) is not None:
        found += await lines.read_large(db) if page.large else page.lines
    return found


async def a_batch_with_results_of_all_kinds(db: Session) -> UUID:
    """Several lanes, lines that failed or have not run, large lines, and line breaks between values."""
    worker, batch = a_worker(), await a_batch(db, {"a": 300, "b": 40, "c": 3})
    items = await take(db, worker, 300)
    kept = [item for item in items if item.line_no % 7]
    wrong = [failed(item) for item in items if item.line_no % 7 == 0]
    await spans.settle(db, worker.id, [*(completed(item) for item in kept), *wrong])
    await sql(db, "UPDATE batchline.results SET output = output || repeat(' ', 100) WHERE line_no %% 10 = 0")
    await sql(db, "UPDATE batchline.results SET output = E'{\n\t\"a\":\r1\x01}' WHERE line_no %% 11 = 0")
    # A gap that is wider than what a page looks at first.
    await sql(db, "DELETE FROM batchline.results WHERE line_no BETWEEN 20 AND 280")
    return batch.id


@pytest.mark.parametrize("room", ROOMS)
async def test_a_running_output_is_the_same_in_pages_as_in_one_stream(db: Session, room: int) -> None:
    batch_id = await a_batch_with_results_of_all_kinds(db)
    stream = await outputs.lines(db, batch_id, "output")
    expected = b"".join([block async for block in stream])
    count = stream.count
    paged = await pages.of_output(db, batch_id, room)
    assert await all_of(db, paged) == expected
    assert paged.count == count > 10


@pytest.mark.parametrize("room", ROOMS)
async def test_an_input_file_is_the_same_in_pages_as_in_one_stream(db: Session, room: int) -> None:
    batch = await a_batch(db, {"a": 300, "b": 40, "c": 3})
    await sql(db, "UPDATE batchline.lines SET body = body || repeat(' ', 100) WHERE line_no %% 10 = 0")
    await sql(
        db, "UPDATE batchline.lines SET body = E'{\n\"a\":1}', custom_id = 'ä\"' WHERE line_no %% 11 = 0"
    )
    # Empty lines of a file have numbers too.
    await sql(db, "UPDATE batchline.lines SET line_no = line_no + 5000 WHERE line_no > 100")
    rows = await sql(
        db,
        "SELECT to_json(custom_id)::text, body FROM batchline.lines ORDER BY line_no",
    )
    expected = "".join(
        f'{{"custom_id":{custom_id},"method":"POST","url":"/v1/chat/completions","body":{body}}}\n'
        for custom_id, body in rows
    )
    paged = await pages.of_input(db, batch.file_id, room)
    # A line break within a body becomes a space, so that each line stays one.
    assert await all_of(db, paged) == expected.replace("{\n", "{ ").encode()
    assert paged.count == 343


async def test_lines_that_finish_meanwhile_come_if_they_lie_ahead_and_none_comes_twice(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 6)
    items = await take(db, worker, 6)
    await complete(db, worker, [items[1], items[2]])
    paged = await pages.of_output(db, batch.id, room=1)
    first = await paged.read(db)
    assert first is not None
    assert first.large, "no line fits into one byte"
    assert await paged.read_large(db) == b'{"answer": 2}\n'
    await complete(db, worker, [items[0], items[4]])
    assert await all_of(db, paged) == b'{"answer": 3}\n{"answer": 5}\n'


async def test_nothing_is_held_between_two_pages(database_url: str) -> None:
    held = """
        SELECT count(*) FROM pg_stat_activity
        WHERE application_name = 'batchline reader' AND datname = current_database()
          AND (state <> 'idle' OR backend_xmin IS NOT NULL)
    """
    async with Session(database_url, "reader") as reader, Session(database_url, "test") as db:
        paged = await pages.of_output(reader, await a_batch_with_results_of_all_kinds(db), room=200)
        while await paged.read(reader) is not None:
            assert await sql(db, held) == [(0,)]
