"""PgBouncer in front of a database, with the settings of the how-to page."""

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support import external
from tests.support.ports import free_ports
from tests.support.repository import ROOT
from tests.support.waiting import wait_for

PAGE = ROOT / "docs" / "how-to" / "pgbouncer.md"
_PASSWORD = "secret"


def documented_settings() -> str:
    found = re.search(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, "the page shows no pgbouncer.ini"
    return found[1]


@contextmanager
def pooled(database: str, folder: Path, more: str = "") -> Iterator[str]:
    """The URL of the database behind a PgBouncer. `more` are settings beyond those of the page."""
    program = external.pgbouncer()
    folder.mkdir(exist_ok=True)
    location = conninfo_to_dict(database)
    (port,), users = free_ports(1), folder / "userlist.txt"
    users.write_text(f'"{location["user"]}" "{_PASSWORD}"\n')
    settings = _placed(documented_settings(), location, port, users)
    # PgBouncer refuses to run as root, and a server may be open to its own account alone.
    owner = _owner(location)
    ini = folder / "pgbouncer.ini"
    ini.write_text(f"{settings}{more}\nunix_socket_dir =\nlogfile = {folder / 'pgbouncer.log'}\n")
    if owner is not None:
        _change_owner(folder, owner)
    with subprocess.Popen(
        [program, "-q", ini], user=owner, group=_group(owner), stderr=subprocess.PIPE
    ) as process:
        try:
            url = f"postgresql://{location['user']}:{_PASSWORD}@127.0.0.1:{port}/batchline"
            wait_for("PgBouncer to answer", lambda: process.poll() is not None or _answers(url))
            assert process.poll() is None, (folder / "pgbouncer.log").read_text()
            yield url
        finally:
            process.terminate()


def _placed(settings: str, location: dict[str, str | int | None], port: int, users: Path) -> str:
    """The page's settings with this machine's addresses: what is not on the page is not replaced."""
    for documented, here in {
        "host=db.example port=5432 dbname=batchline": (
            f"host={location['host']} port={location.get('port', 5432)} dbname={location['dbname']}"
        ),
        "listen_addr = 0.0.0.0": "listen_addr = 127.0.0.1",
        "listen_port = 6432": f"listen_port = {port}",
        "/etc/pgbouncer/userlist.txt": str(users),
    }.items():
        assert documented in settings, f"the page has changed: {documented}"
        settings = settings.replace(documented, here)
    return settings


def _owner(location: dict[str, str | int | None]) -> int | None:
    """Whom to run as; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    path = Path(str(location["host"]), f".s.PGSQL.{location.get('port', 5432)}")
    return path.stat().st_uid if path.exists() else 65534


def _group(owner: int | None) -> int | None:
    """The account's own group: folders on the way to the server's socket may be open to that alone."""
    return None if owner is None else pwd.getpwuid(owner).pw_gid


def _change_owner(folder: Path, owner: int) -> None:
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner, -1)
    for parent in folder.resolve().parents:
        parent.chmod(parent.stat().st_mode | 0o011)


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=10):
            return True
    except psycopg.OperationalError:
        return False
