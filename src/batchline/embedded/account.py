"""The operating system's account that the server runs under.

PostgreSQL refuses to run as root. Root therefore runs it as the owner of an existing cluster, or else as the
user `pgserver`, who must be able to reach the cluster, the socket and the wheel. For that, this account may
pass through the folders on the way, and not list them. Nobody else gets any right to them: the data folder
belongs to the account's group, and other folders get an entry in their access control list.
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

_NAME = "pgserver"  # as the wheel itself calls it


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Gives a file, or a folder with all that is in it, to the account."""
        if os.geteuid() == 0:
            for part in (path, *path.rglob("*")):
                os.chown(part, self.uid, self.gid, follow_symlinks=False)

    def reach(self, path: Path) -> None:
        """Lets the account pass through the parents of `path`."""
        if os.geteuid() == 0:
            for folder in path.resolve().parents:
                if not may_pass(folder, self.uid, self.gid):
                    with _said(folder):
                        let_pass(folder, self.uid)

    def enter(self, data_dir: Path) -> None:
        """Lets the account pass through the data folder, which is root's."""
        self.reach(data_dir)
        if os.geteuid() == 0 and not may_pass(data_dir, self.uid, self.gid):
            with _said(data_dir):
                os.chown(data_dir, -1, self.gid)
                data_dir.chmod(stat.S_IRWXU | stat.S_IXGRP)

    def use(self, programs: Path) -> None:
        """Lets the account read and run what is in a folder, also if it was unpacked under a umask of 077."""
        self.reach(programs)
        if os.geteuid() == 0 and not programs.stat().st_mode & stat.S_IXOTH:
            # The folder itself comes last: it is open only when everything in it is.
            for part in (*programs.rglob("*"), programs):
                executable = part.stat().st_mode & stat.S_IXUSR
                _allow(part, stat.S_IROTH | (stat.S_IXOTH if executable else 0))


def account_for(cluster: Path) -> Account:
    """Ourselves; if we are root, the cluster's owner; if that is nobody or root, the user `pgserver`."""
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
    # A system user: systemd removes the shared memory of the others when they log out.
    command = ["useradd", "--system", "--user-group", "--shell", "/usr/sbin/nologin", _NAME]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        problem = done.stderr.strip()
    except OSError as error:
        problem = str(error)
    # Also found when another process added it at the same moment and useradd refused ours.
    entry = _find()
    if entry is None:
        raise EmbeddedPostgresError(
            f"PostgreSQL does not run as root, and a user {_NAME} to run it could not be added: {problem}. "
            f"Run as another user, add a user {_NAME} yourself, or give a database with --database."
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
            f"({error}). Choose another data folder, run as another user, or give a database with --database."
        ) from error
