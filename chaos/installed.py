"""An installed PostgreSQL, such as Debian's, with a cluster in a separate folder.

As root, the server runs as the user `postgres`, because PostgreSQL refuses to run as root.

`python -m chaos.installed /usr/lib/postgresql/15/bin COMMAND…` runs a command, such as the tests, with one.
"""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batchline.embedded.processes import end_leftovers, runs

_PORT = "5432"  # only part of the socket's name, unless the settings have it listen
_USER = "postgres"


@dataclass(frozen=True)
class Installed:
    """An installed PostgreSQL. `make` creates it; it may be started and stopped repeatedly."""

    programs: Path
    """The folder with initdb and pg_ctl, such as /usr/lib/postgresql/15/bin."""
    folder: Path
    settings: Mapping[str, str]

    @classmethod
    def make(cls, programs: Path, folder: Path, settings: Mapping[str, str] | None = None) -> "Installed":
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            account = pwd.getpwnam(_USER)
            os.chown(folder, account.pw_uid, account.pw_gid)
            # Only its owner may enter a temporary folder; let the server traverse it.
            folder.parent.chmod(folder.parent.stat().st_mode | 0o011)
        server = cls(programs, folder, dict(settings or {}))
        server._run("initdb", "-D", "data", "-U", _USER, "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8")
        return server

    @property
    def url(self) -> str:
        """Through its socket, without a password."""
        return f"postgresql://{_USER}@/postgres?host={self.folder}&port={self._port}"

    @property
    def _port(self) -> str:
        return self.settings.get("port", _PORT)

    @property
    def pid(self) -> int | None:
        """The server's process id; None after it has stopped and removed its lock file."""
        try:
            return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    @property
    def _name(self) -> str:
        """The cluster name, which is in the title of every process of the server."""
        return f"batchline-installed-{self.folder.stat().st_ino:x}"

    def start(self) -> None:
        """Start the server, even after it was killed, and wait until it has recovered."""
        lock = self.folder / "data" / "postmaster.pid"
        pid = self.pid
        if lock.exists() and (pid is None or not runs(pid, self._name)):
            # PostgreSQL trusts the lock file of a killed server while its pid exists, for example as a
            # zombie.
            end_leftovers(self._name)
            lock.unlink()
            (self.folder / f".s.PGSQL.{self._port}.lock").unlink(missing_ok=True)
        chosen = {
            "listen_addresses": "",
            "port": _PORT,
            **self.settings,
            "cluster_name": self._name,
            "unix_socket_directories": str(self.folder),
        }
        options = " ".join(f"-c {name}='{value}'" for name, value in chosen.items())
        self._run("pg_ctl", "start", "-D", "data", "-l", "log", "-w", "-t", "120", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-D", "data", "-m", "fast", "-w", "-t", "120")

    def _run(self, program: str, *arguments: str) -> None:
        # Log to a file: a server that pg_ctl starts would keep a pipe open.
        with (self.folder / "programs.log").open("ab") as log:
            subprocess.run(
                [self.programs / program, *arguments],
                cwd=self.folder,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_USER if os.geteuid() == 0 else None,
                group=_USER if os.geteuid() == 0 else None,
                extra_groups=[] if os.geteuid() == 0 else None,
            )


def main() -> None:
    programs, *command = sys.argv[1:]
    # For tests, which crash processes and never the machine. Compiling the queries of their own connections
    # would take longer than all else; sessions switch that off themselves.
    settings = {"max_connections": "300", "fsync": "off", "jit": "off"}
    with tempfile.TemporaryDirectory(prefix="batchline-installed-") as folder:
        server = Installed.make(Path(programs), Path(folder, "server"), settings)
        server.start()
        try:
            done = subprocess.run(command, env={**os.environ, "BATCHLINE_TEST_DATABASE_URL": server.url})
        finally:
            server.stop()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
