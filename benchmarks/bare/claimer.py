"""The minimum for a queue with one row per item: claim a thousand, mark them as done, commit.

    python -m benchmarks.bare.claimer URL

prints `ready`, waits for a line, and works until nothing is left; then prints when it began and ended. It
runs nothing, sends no notification and keeps no result, and a crash would leave rows claimed forever.
"""

import sys
from time import perf_counter

import psycopg

SCHEMA = """
    CREATE TABLE jobs (id bigint PRIMARY KEY, state smallint NOT NULL DEFAULT 0, body text NOT NULL);
    CREATE INDEX ON jobs (id) WHERE state = 0
"""
FILL = "INSERT INTO jobs (id, body) SELECT g, repeat('x', 300) FROM generate_series(1, %(items)s) AS g"
_CLAIM = """
    UPDATE jobs SET state = 1
    WHERE id IN (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING id, body
"""
_DONE = "UPDATE jobs SET state = 2 WHERE id = ANY (%b)"


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor(binary=True) as cursor:
        print("ready", flush=True)
        sys.stdin.readline()
        begun = perf_counter()
        while rows := cursor.execute(_CLAIM, prepare=True).fetchall():
            cursor.execute(_DONE, [[row[0] for row in rows]], prepare=True)
        print(begun, perf_counter(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
