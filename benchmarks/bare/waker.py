"""The least that a woken worker could do: wait for a NOTIFY, claim a row and commit, say when that was.

    python -m benchmarks.bare.waker URL

prints `ready`, then perf_counter() after each claim. The clock is the same in all processes of a machine.
"""

import sys
from time import perf_counter

import psycopg

CHANNEL = "wake"
SCHEMA = "CREATE TABLE work (id integer PRIMARY KEY, claims integer NOT NULL); INSERT INTO work VALUES (1, 0)"
_CLAIM = "UPDATE work SET claims = claims + 1 WHERE id = 1 RETURNING id, claims"


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as listener, psycopg.connect(url, autocommit=True) as claimer:
        listener.execute(f"LISTEN {CHANNEL}")
        claimer.execute(_CLAIM, prepare=True)
        print("ready", flush=True)
        for _ in listener.notifies():
            claimer.execute(_CLAIM, prepare=True).fetchone()
            print(perf_counter(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
