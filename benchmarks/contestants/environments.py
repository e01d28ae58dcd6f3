"""A separate environment per contestant, created once from its lock and kept in `.bench`.

    python -m benchmarks.contestants.environments

creates those that are missing.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contestants.roster import OTHERS, Entrant

_LOCKS = Path(__file__).parent
_CACHE = _LOCKS.parent.parent / ".bench"


class Unavailable(Exception):
    """The contestant cannot run here."""


def python_of(entrant: Entrant, *, make: bool) -> Path:
    """The Python of the contestant's environment, installed exactly as in its lock."""
    if entrant.is_ours:
        return Path(sys.executable)
    return python_at(entrant.module, entrant.label, make=make, oldest=entrant.python)


def python_at(name: str, label: str, *, make: bool, oldest: tuple[int, int] = (3, 11)) -> Path:
    """The Python of the environment for the lock of this name."""
    lock = _LOCKS / f"{name}.lock"
    folder = _CACHE / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        if not make:
            raise Unavailable(f"{label} is not installed, and a quick run installs nothing")
        shutil.rmtree(folder, ignore_errors=True)
        _call(str(_interpreter(label, oldest)), "-m", "venv", str(folder))
        # The lock is complete. Older versions of pip look for `package[extra]` beside it.
        options = ("--quiet", "--no-deps", "--require-hashes", "--requirement", str(lock))
        _call(str(python), "-m", "pip", "install", *options)
        (folder / "complete").touch()
    return python


def _interpreter(label: str, oldest: tuple[int, int]) -> Path:
    """This Python, or the oldest installed one that is new enough for the contestant."""
    if sys.version_info >= oldest:
        return Path(sys.executable)
    for python in _interpreters(oldest):
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    wanted = ".".join(map(str, oldest))
    raise Unavailable(f"{label} needs Python {wanted}, which is not installed")


def _interpreters(oldest: tuple[int, int]) -> Iterator[Path]:
    major, minor = oldest
    for newer in range(minor, minor + 4):
        if found := shutil.which(f"python{major}.{newer}"):
            yield Path(found)
        yield from sorted(Path.home().glob(f".pyenv/versions/{major}.{newer}.*/bin/python"))


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    for other in OTHERS:
        try:
            print(python_of(other, make=True), flush=True)
        except Unavailable as error:
            print(error, flush=True)
