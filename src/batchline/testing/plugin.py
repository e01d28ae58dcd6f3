"""Fixtures for pytest. Nothing of Batchline is imported before a test uses one."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def batchline_test_server() -> Iterator[str]:
    """The URL of a PostgreSQL server for tests: BATCHLINE_TEST_DATABASE_URL, or else an embedded one, which
    does not wait for its disk."""
    from batchline.embedded import EmbeddedPostgres

    given = os.environ.get("BATCHLINE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with (
        tempfile.TemporaryDirectory(prefix="batchline-test-") as folder,
        EmbeddedPostgres.start(Path(folder), settings={"fsync": "off"}) as server,
    ):
        yield server.url


@pytest.fixture(scope="session")
def batchline_database_template(batchline_test_server: str) -> Iterator[str]:
    """The name of a migrated database, made once."""
    from batchline.store import databases_for_tests

    with databases_for_tests.template(batchline_test_server) as name:
        yield name


@pytest.fixture
def batchline_app_database(batchline_test_server: str, batchline_database_template: str) -> Iterator[str]:
    """The URL of an empty database for one test."""
    from batchline.store import databases_for_tests

    with databases_for_tests.copy(batchline_test_server, batchline_database_template) as url:
        yield url
