"""One server for all processes that use a data folder: the first one in starts it, the last one out stops it.

Who uses it only the kernel knows. Each user holds a shared lock on `users.lock`, which ends with the process
however that ends; starting and stopping happen under an exclusive lock on `start.lock`. Whoever leaves and
then gets `users.lock` exclusively was the last one, and stops the server. If the last one was killed, the
server runs on, and the next one in finds it ready.
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

# Seconds. Longer than any start, stop or recovery takes that the holder of the lock waits for.
_LOCK_WITHIN = 1200
_SAY_AFTER = 5
_POLL_SECONDS = 0.01

_log = logging.getLogger("batchline.embedded")


def default_data_dir() -> Path:
    """BATCHLINE_DATA_DIR, or the place where this system keeps a user's data."""
    if chosen := os.environ.get("BATCHLINE_DATA_DIR"):
        return Path(chosen)
    import platformdirs  # Here, because to import it takes longer than a warm start.

    return platformdirs.user_data_path("batchline")


@dataclass(frozen=True, eq=False)
class EmbeddedPostgres:
    """One use of the server of a data folder, from `start` to `stop` or to the end of the process.

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
        """Joins the server of `data_dir`; makes and starts it first where needed, whatever crashed before.

        `settings` override Batchline's server settings, if it is this call that starts the server.
        """
        if sys.platform == "win32":
            raise EmbeddedPostgresError(
                "The embedded PostgreSQL does not run on Windows. Use WSL, or give another with --database."
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
        """Leaves the server, and stops it if nobody else uses it. Stopping twice is stopping once."""
        if os.getpid() != self._process:
            return  # A fork shares its parent's lock and must not give it up.
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
    from batchline.embedded.cluster import Cluster  # Here, because a warm start does without it and psutil.

    return Cluster.of(data_dir).ensure_running(settings)


def _stop(data_dir: Path) -> None:
    from batchline.embedded.cluster import Cluster

    Cluster.of(data_dir).stop()


def _is_last(users: FileIO) -> bool:
    """Gives up the shared lock, whatever comes of it; under the start lock nobody new can take one."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> FileIO:
    return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)


def _release(file: FileIO) -> None:
    # To close the file is not enough while a fork has it open as well.
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
    """Waits for who starts or stops the server; says so, and not for ever: that process may be stopped."""
    began, announced = time.monotonic(), False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited > _SAY_AFTER and not announced:
            announced = True
            _log.warning("another process starts or stops PostgreSQL in %s; waiting", path.parent)
        if waited > _LOCK_WITHIN:
            raise EmbeddedPostgresError(
                f"Another process has been starting or stopping PostgreSQL in {path.parent} for "
                f"{waited:.0f} s. `fuser {path}` shows which one; end it, and try again."
            )
        time.sleep(_POLL_SECONDS)
