"""The operating system's account that the server runs under.

PostgreSQL refuses to run as root. Root therefore runs it as the owner of an existing cluster, or else as the
user `pgserver`, who must be able to reach the cluster, the socket and the wheel. For that, folders on the way
get the execute bit where it is missing, and no other: one may pass through them, not list them.
"""

import os
import pwd
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
                _allow(folder, self._passing_bit(folder.stat()))

    def use(self, programs: Path) -> None:
        """Lets the account read and run what is in a folder, also if it was unpacked under a umask of 077."""
        self.reach(programs)
        if os.geteuid() == 0 and not programs.stat().st_mode & stat.S_IXOTH:
            # The folder itself comes last: it is open only when everything in it is.
            for part in (*programs.rglob("*"), programs):
                executable = part.stat().st_mode & stat.S_IXUSR
                _allow(part, stat.S_IROTH | (stat.S_IXOTH if executable else 0))

    def _passing_bit(self, folder: os.stat_result) -> int:
        if folder.st_uid == self.uid:
            return stat.S_IXUSR
        return stat.S_IXGRP if folder.st_gid == self.gid else stat.S_IXOTH


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
    command = ["useradd", "--system", "--shell", "/usr/sbin/nologin", _NAME]
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
    try:
        path.chmod(mode | bits)
    except OSError as error:
        raise EmbeddedPostgresError(
            f"The account that runs PostgreSQL cannot reach {path}, and its permissions cannot be changed "
            f"({error}). Choose another data folder, run as another user, or give a database with --database."
        ) from error
