"""One server for all processes that use a data folder: the first one starts it, the last one stops it.

The kernel keeps track of the users. Each process holds a shared lock on `users.lock`, which the kernel
releases when the process ends in any way. Starting and stopping need an exclusive lock on `start.lock`. A
process that leaves and then gets `users.lock` exclusively was the last one, and stops the server. If the last
process was killed, the server keeps running, and the next process finds it ready.
"""

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from batchline.embedded.errors import EmbeddedPostgresError
from batchline.embedded.postmaster import Postmaster
from batchline.host.private import FolderNotPrivate, data_folder

if sys.platform != "win32":
    import fcntl

# Seconds. Longer than the holder of the lock waits for any start, stop or recovery.
_LOCK_WITHIN = 1200
_SAY_AFTER = 5
_POLL_SECONDS = 0.01

_log = logging.getLogger("batchline.embedded")


def default_data_dir() -> Path:
    """BATCHLINE_DATA_DIR, or this system's usual folder for user data."""
    if chosen := os.environ.get("BATCHLINE_DATA_DIR"):
        return Path(chosen)
    import platformdirs  # Imported here, because the import takes longer than a warm start.

    return platformdirs.user_data_path("batchline")


@dataclass(frozen=True, eq=False)
class EmbeddedPostgres:
    """One process's use of the server of a data folder, from `start` to `stop` or the end of the process.

    The cluster is in `data_dir/postgres`, the server's log in `data_dir/postgres.log`. The server listens on
    a socket that only its own account and root may use, never on TCP; hence no password.
    """

    data_dir: Path
    url: str
    postmaster_pid: int
    _users: FileIO = field(repr=False)
    _process: int = field(repr=False, default_factory=os.getpid)

    @classmethod
    def start(cls, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> Self:
        """Join the server of `data_dir`. Create, recover and start it first if necessary.

        `settings` override Batchline's server settings, if this call starts the server.
        """
        if sys.platform == "win32":
            raise EmbeddedPostgresError(
                "The embedded PostgreSQL does not run on Windows."
                " Use WSL, or another database with --database."
            )
        data_dir = data_dir.expanduser()
        try:
            data_folder(data_dir)
        except FolderNotPrivate as error:
            raise EmbeddedPostgresError(str(error)) from error
        data_dir = data_dir.resolve()
        with _locked(data_dir / "start.lock"):
            users = _open(data_dir / "users.lock")
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                postmaster = _ensure_running(data_dir, settings or {})
            except BaseException:
                _release(users)
                raise
        server = cls(data_dir, postmaster.url, postmaster.pid, users)
        atexit.register(server.stop)
        return server

    def stop(self) -> None:
        """Leave the server, and stop it if no other process uses it. Idempotent."""
        if os.getpid() != self._process:
            return  # A fork shares its parent's lock and must not release it.
        atexit.unregister(self.stop)
        with _locked(self.data_dir / "start.lock"):
            if self._users.closed:
                return
            try:
                if _is_last(self._users):
                    _stop(self.data_dir)
            finally:
                _release(self._users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _ensure_running(data_dir: Path, settings: Mapping[str, str]) -> Postmaster:
    postmaster = Postmaster.read(data_dir / "postgres")
    if postmaster and postmaster.status == "ready" and postmaster.answers():
        return postmaster
    from batchline.embedded.cluster import Cluster  # Imported here: a warm start needs neither it nor psutil.

    return Cluster.of(data_dir).ensure_running(settings)


def _stop(data_dir: Path) -> None:
    from batchline.embedded.cluster import Cluster

    Cluster.of(data_dir).stop()


def _is_last(users: FileIO) -> bool:
    """Release the shared lock, and return whether no other process holds one.

    The start lock keeps new ones out.
    """
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> FileIO:
    return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)


def _release(file: FileIO) -> None:
    # Closing the file is not enough while a fork also has it open.
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = _open(path)
    try:
        _lock(file, path)
        yield
    finally:
        _release(file)


def _lock(file: FileIO, path: Path) -> None:
    """Wait, with a message and a limit, for the process that starts or stops the server: it may hang."""
    began, announced = time.monotonic(), False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited > _SAY_AFTER and not announced:
            announced = True
            _log.warning("waiting for another process that starts or stops PostgreSQL in %s", path.parent)
        if waited > _LOCK_WITHIN:
            raise EmbeddedPostgresError(
                f"Another process has been starting or stopping PostgreSQL in {path.parent} for "
                f"{waited:.0f} s. `fuser {path}` shows which one; end it, and try again."
            )
        time.sleep(_POLL_SECONDS)
