"""Results in a table of the user's, and results that are not kept."""

from dataclasses import dataclass

import psycopg
import pytest

from batchline import Batchline, InvalidApp


@dataclass
class Square:
    number: int
    square: int


async def squares(app: Batchline, table: str, numbers: list[int]) -> list[bool]:
    @app.operation(sink=table)
    async def square(number: int) -> Square:
        return Square(number, number * number)

    batch = await app.submit(square, numbers)
    await batch.wait()
    return [result.ok async for result in batch.results()]


def rows(url: str, table: str) -> list[tuple[int, int]]:
    with psycopg.connect(url) as connection:
        query = f"SELECT number, square FROM {table} ORDER BY number"
        return [(number, square) for number, square in connection.execute(query.encode())]


def create(url: str, table: str) -> None:
    with psycopg.connect(url) as connection:
        columns = "number integer PRIMARY KEY, square bigint NOT NULL CHECK (square < 1000)"
        connection.execute("CREATE SCHEMA IF NOT EXISTS app")
        connection.execute(f"CREATE TABLE {table} ({columns})".encode())


@pytest.mark.parametrize(("sink", "table"), [("squares", "public.squares"), ("app.Squares", 'app."Squares"')])
async def test_each_result_is_a_row(app: Batchline, database_url: str, sink: str, table: str) -> None:
    create(database_url, table)
    assert all(await squares(app, sink, list(range(20))))
    assert rows(database_url, table) == [(number, number**2) for number in range(20)]


async def test_a_row_that_the_table_refuses_fails_only_its_item(app: Batchline, database_url: str) -> None:
    create(database_url, "public.squares")
    ended = await squares(app, "squares", [1, 2, 99, 3, 2])
    assert ended.count(False) == 2
    assert ended[2] is False
    assert rows(database_url, "public.squares") == [(1, 1), (2, 4), (3, 9)]


async def test_results_that_are_not_kept_are_none(app: Batchline) -> None:
    @app.operation(keep_results=False)
    async def square(number: int) -> int:
        return number * number

    assert await app.amap(square, [1, 2]) == [None, None]


async def test_a_result_without_fields_fails_its_item(app: Batchline) -> None:
    @app.operation(sink="squares")
    async def square(number: int) -> int:
        return number

    batch = await app.submit(square, [1])
    await batch.wait()
    (error,) = [result.error async for result in batch.results()]
    assert error is not None
    assert error.code == "invalid_result"


@pytest.mark.parametrize("sink", ["", "a.b.c", ".a", 7])
def test_a_sink_that_is_no_table_is_refused(sink: str) -> None:
    with pytest.raises(InvalidApp, match="sink must be a table"):

        @Batchline().operation(sink=sink)
        async def square(number: int) -> int:
            return number
