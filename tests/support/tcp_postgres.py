"""PostgreSQL 15 that listens on a port of loopback and asks for a password, as one in production does."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from chaos.installed import Installed
from tests.support import external
from tests.support.ports import free_ports

USER = DATABASE = "batchline"
PASSWORD = "a password with spaces and 100 %"


@dataclass(frozen=True, slots=True)
class TcpPostgres:
    server: Installed
    port: int
    folder: Path

    @property
    def url(self) -> str:
        """Without the password: PGPASSWORD has it."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def give(self, name: str, content: bytes) -> Path:
        """A file in the server's folder that only the server may read."""
        path = self.server.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(path, pwd.getpwnam("postgres").pw_uid, -1)
        return path


@contextmanager
def tcp_postgres(
    settings: Mapping[str, str], *, kind: str = "host", files: Mapping[str, bytes] | None = None
) -> Iterator[TcpPostgres]:
    """A server with these settings, an empty database and its owner. `kind`: `hostssl` refuses connections
    without TLS. `files` are in the server's folder when it starts."""
    programs = external.postgresql_15_programs()
    (port,) = free_ports(1)
    own = {"fsync": "off", "listen_addresses": "127.0.0.1", "port": str(port)}
    with tempfile.TemporaryDirectory(prefix="batchline-tcp-") as folder:
        server = Installed.make(programs, Path(folder, "server"), {**settings, **own})
        rules = f"local all,replication postgres trust\n{kind} all all 127.0.0.1/32 scram-sha-256\n"
        (server.folder / "data" / "pg_hba.conf").write_text(rules)
        postgres = TcpPostgres(server, port, Path(folder))
        for name, content in (files or {}).items():
            postgres.give(name, content)
        server.start()
        try:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'".encode())
                connection.execute(f"CREATE DATABASE {DATABASE} OWNER {USER}".encode())
            yield postgres
        finally:
            server.stop()


def run_program(name: str, *arguments: str, **environment: str) -> str:
    """Run a program of PostgreSQL 15, such as pg_dump; what it printed."""
    done = subprocess.run(
        [external.postgresql_15_programs() / name, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
