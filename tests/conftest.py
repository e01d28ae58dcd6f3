"""A real PostgreSQL for all tests, and a fresh database from a migrated template for each."""

import asyncio
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from batchline.embedded import EmbeddedPostgres
from batchline.store import migrate
from batchline.store.session import Session
from tests.support import databases
from tests.support.logs import log_settings_restored

_COUNTER = itertools.count()

# Commands that tests start buffer their output, as they do for users.
os.environ.pop("PYTHONUNBUFFERED", None)

# A shell lets programs in the background ignore Ctrl-C, and the commands that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, and nothing about the code.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of asyncio, or uvloop for a test that is marked so."""
    if sys.platform != "win32" and item.get_closest_marker("uvloop"):
        import uvloop

        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A command that runs in the process of a test sets up the log of all the process."""
    with log_settings_restored():
        yield


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """BATCHLINE_TEST_DATABASE_URL, or an embedded server. Without fsync: these tests crash processes,
    never the machine; the ones that crash PostgreSQL start one of their own."""
    outside = os.environ.get("BATCHLINE_TEST_DATABASE_URL")
    if outside:
        yield outside
        return
    with (
        tempfile.TemporaryDirectory(prefix="batchline-test-") as folder,
        EmbeddedPostgres.start(Path(folder), settings={"fsync": "off"}) as server,
    ):
        yield server.url


def with_database(url: str, name: str) -> str:
    return make_conninfo(url, dbname=name)


@pytest.fixture(scope="session")
def template(server_url: str) -> str:
    name = f"template_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    migrate.up(with_database(server_url, name))
    return name


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"test_{os.getpid()}_{next(_COUNTER)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        databases.create(connection, name, template)
        yield with_database(server_url, name)
        databases.drop(connection, name)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Session]:
    """A session on a fresh, migrated database."""
    async with Session(database_url, "test") as session:
        yield session
