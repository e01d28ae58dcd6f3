"""The minimum for a woken worker: wait for a NOTIFY, claim a row and commit, print the time.

    python -m benchmarks.bare.waker URL

prints `ready`, then perf_counter() after each claim. The clock is the same in all processes of a machine. It
uses the same driver and event loop as Batchline's worker, so the difference is the work of the worker.
"""

import asyncio
import sys
from time import perf_counter

import psycopg
import uvloop

CHANNEL = "wake"
SCHEMA = "CREATE TABLE work (id integer PRIMARY KEY, claims integer NOT NULL); INSERT INTO work VALUES (1, 0)"
_CLAIM = """
    UPDATE work
    SET claims = claims + 1
    WHERE id = (SELECT id FROM work ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, claims
"""


async def main(url: str) -> None:
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as listener,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as claimer,
    ):
        await listener.execute(f"LISTEN {CHANNEL}")
        await claimer.execute(_CLAIM, prepare=True)
        print("ready", flush=True)
        async for _ in listener.notifies():
            cursor = await claimer.execute(_CLAIM, prepare=True)
            await cursor.fetchone()
            print(perf_counter(), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
