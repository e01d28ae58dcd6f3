"""The operating system account that runs the server.

PostgreSQL refuses to run as root. So root runs it as the owner of an existing cluster, or else as the user
`pgserver`. That account must reach the cluster, the socket and the wheel, so it may traverse the folders on
the way, but not list them. No other account gets any right to them: the data folder belongs to the account's
group, and other folders get an entry in their access control list.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from batchline.embedded.acl import let_pass, may_pass
from batchline.embedded.errors import EmbeddedPostgresError

_NAME = "pgserver"  # the name that the wheel uses


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Make the account the owner of a file, or of a folder with all its contents."""
        if os.geteuid() == 0:
            for part in (path, *path.rglob("*")):
                os.chown(part, self.uid, self.gid, follow_symlinks=False)

    def reach(self, path: Path) -> None:
        """Let the account traverse the parents of `path`."""
        if os.geteuid() == 0:
            for folder in path.resolve().parents:
                if not may_pass(folder, self.uid, self.gid):
                    with _said(folder):
                        let_pass(folder, self.uid)

    def enter(self, data_dir: Path) -> None:
        """Let the account traverse the data folder, which root owns."""
        self.reach(data_dir)
        if os.geteuid() == 0 and not may_pass(data_dir, self.uid, self.gid):
            with _said(data_dir):
                os.chown(data_dir, -1, self.gid)
                data_dir.chmod(stat.S_IRWXU | stat.S_IXGRP)

    def use(self, programs: Path) -> None:
        """Let the account read and run a folder's contents, even if it was unpacked under a umask of 077."""
        self.reach(programs)
        if os.geteuid() == 0 and not programs.stat().st_mode & stat.S_IXOTH:
            # The folder itself comes last: it becomes accessible only after everything in it.
            for part in (*programs.rglob("*"), programs):
                executable = part.stat().st_mode & stat.S_IXUSR
                _allow(part, stat.S_IROTH | (stat.S_IXOTH if executable else 0))


def account_for(cluster: Path) -> Account:
    """Choose the account: our own; for root the cluster's owner, or `pgserver` if that is root or missing."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    with suppress(FileNotFoundError):
        owner = cluster.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    entry = _find() or _add()
    return Account(entry.pw_uid, entry.pw_gid)


def _find() -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwnam(_NAME)
    return None


def _add() -> pwd.struct_passwd:
    # A system user, because systemd removes the shared memory of other users when they log out.
    command = ["useradd", "--system", "--user-group", "--shell", "/usr/sbin/nologin", _NAME]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        problem = done.stderr.strip()
    except OSError as error:
        problem = str(error)
    # Another process may have added it at the same moment, so that our useradd failed.
    entry = _find()
    if entry is None:
        raise EmbeddedPostgresError(
            f"PostgreSQL does not run as root, and adding a user {_NAME} to run it failed: {problem}. "
            f"Run as another user, add a user {_NAME} yourself, or use another database with --database."
        )
    return entry


def _allow(path: Path, bits: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & bits == bits:
        return
    with _said(path):
        path.chmod(mode | bits)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedPostgresError(
            f"The account that runs PostgreSQL cannot reach {path}, and its permissions cannot be changed "
            f"({error}). Choose another data folder, run as another user, or use another database with"
            " --database."
        ) from error
