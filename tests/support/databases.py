"""Databases made and dropped on a server that may be slow to notice that nobody uses them any more."""

from typing import Any

import psycopg
from psycopg import sql

from tests.support.waiting import wait_for


def create(connection: psycopg.Connection[Any], name: str, template: str) -> None:
    _execute(connection, sql.SQL("CREATE DATABASE {} TEMPLATE {}"), name, template)


def drop(connection: psycopg.Connection[Any], name: str) -> None:
    _execute(connection, sql.SQL("DROP DATABASE {} WITH (FORCE)"), name)


def _execute(connection: psycopg.Connection[Any], command: sql.SQL, *names: str) -> None:
    """PostgreSQL itself waits 5 s for the end of other connections to the database, and then refuses."""

    def done() -> bool:
        try:
            connection.execute(command.format(*map(sql.Identifier, names)))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_for("the end of all connections to a database", done)
