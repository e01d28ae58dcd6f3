"""Another local user, for tests that run as root."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


def readable_by_others(paths: list[Path]) -> list[str]:
    """Which of these the user nobody can read, list or connect to, as that user finds out itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with os.fdopen(writing, "w") as reported:
                reported.writelines(f"{path}\n" for path in paths if _can_open(path))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as reported:
        found = reported.read().splitlines()
    os.waitpid(child, 0)
    return found


def _can_open(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.listdir(path)
        elif stat.S_ISSOCK(mode):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
        else:
            path.read_bytes()
    except PermissionError:
        return False
    return True


def everything_in(folder: Path) -> Iterator[Path]:
    """The folder and all below it, without what vanishes meanwhile."""
    yield folder
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))
