"""Databases for tests: a migrated template, and copies of it, which take milliseconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from batchline.store import migrate


@contextmanager
def template(server: str) -> Iterator[str]:
    """A migrated database that is never used itself. `server`: the URL of a database whose user may create
    others. Yields its name."""
    with _new(server, "batchline_template", "template0") as (name, url):
        migrate.up(url)
        yield name


@contextmanager
def copy(server: str, name: str) -> Iterator[str]:
    """A copy of the template, which is dropped afterwards. Yields its URL."""
    with _new(server, "batchline_test", name) as (_, url):
        yield url


@contextmanager
def _new(server: str, prefix: str, source: str) -> Iterator[tuple[str, str]]:
    name = f"{prefix}_{token_hex(8)}"
    with psycopg.connect(server, autocommit=True) as connection:
        # Of a small database, quicker than through the log.
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        connection.execute(made.format(sql.Identifier(name), sql.Identifier(source)))
        try:
            yield name, make_conninfo(server, dbname=name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
