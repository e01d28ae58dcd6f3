"""Programs that tests need and that no wheel brings along: PgBouncer, PostgreSQL 15, Prometheus, Chromium.

Where one is missing its tests are skipped. With BATCHLINE_TEST_REQUIRE_EXTERNAL set, as in CI, they fail.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from chaos.installed import Installed

_POSTGRESQL_15 = Path("/usr/lib/postgresql/15/bin")


def pgbouncer() -> Path:
    """Debian's, or that of BATCHLINE_TEST_PGBOUNCER."""
    chosen = os.environ.get("BATCHLINE_TEST_PGBOUNCER")
    found = chosen or shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        _missing("PgBouncer", "pgbouncer")
    return Path(found)


def postgresql_15_programs() -> Path:
    """The folder with initdb, pg_dump and the others."""
    if not (_POSTGRESQL_15 / "initdb").exists():
        _missing("PostgreSQL 15", "postgresql-15")
    return _POSTGRESQL_15


def promtool() -> str:
    return _of_prometheus("promtool")


def prometheus() -> str:
    return _of_prometheus("prometheus")


def _of_prometheus(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        _missing(program, "prometheus")
    return found


def chromium() -> Path:
    """Debian's, or that of BATCHLINE_TEST_CHROMIUM."""
    found = os.environ.get("BATCHLINE_TEST_CHROMIUM") or shutil.which("chromium")
    if found is None:
        _missing("Chromium", "chromium")
    return Path(found)


@contextmanager
def postgresql_15() -> Iterator[str]:
    """The URL of a fresh server."""
    programs = postgresql_15_programs()
    with tempfile.TemporaryDirectory(prefix="batchline-pg15-") as folder:
        server = Installed.make(programs, Path(folder, "server"), {"fsync": "off"})
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


def _missing(what: str, package: str) -> NoReturn:
    reason = f"{what} is not installed (Debian's package {package})"
    if os.environ.get("BATCHLINE_TEST_REQUIRE_EXTERNAL"):
        pytest.fail(reason)
    pytest.skip(reason)
