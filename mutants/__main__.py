"""Runs the mutation suite: every mutant must be noticed by one of its tests.

    python -m mutants                 all of them
    python -m mutants settle "lock"   those whose file or mistake contains one of the words

Each mutant is applied to a copy of the repository. The named tests run there, in order, until one fails.
Before that, all named tests run once without a mutant: a test that fails anyway would prove nothing. Exits
with 1 if a mutant survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutants.access import ACCESS
from mutants.claim import CLAIM
from mutants.conclude import CONCLUDE
from mutants.duplicates import DUPLICATES
from mutants.feeding import FEEDING
from mutants.finalize import FINALIZE
from mutants.hooks import HOOKS
from mutants.lease import LEASE
from mutants.limits import LIMITS
from mutants.monitoring import MONITORING
from mutants.mutant import Mutant
from mutants.providers import PROVIDERS
from mutants.retention import RETENTION
from mutants.retry import RETRY
from mutants.settle import SETTLE
from mutants.spending import SPENDING
from mutants.status import STATUS
from mutants.steps import STEPS
from mutants.traces import TRACES

CATALOGS = (
    *(CLAIM, SETTLE, CONCLUDE, LEASE, FINALIZE, RETRY, RETENTION, LIMITS, ACCESS, HOOKS, PROVIDERS, STATUS),
    *(SPENDING, MONITORING, STEPS, TRACES, FEEDING, DUPLICATES),
)
ALL = tuple(mutant for catalog in CATALOGS for mutant in catalog)

_ROOT = Path(__file__).parent.parent
_COPIED = ("src", "tests", "chaos", "benchmarks", "examples", "docs", "tools", "pyproject.toml", "README.md")
# A mutant may make a test wait for ever. All tests together take longer than those of one mutant.
_SECONDS = 300
_SECONDS_FOR_ALL = 1800
_KILLED, _SURVIVED = 1, 0


@dataclass(frozen=True, slots=True)
class Judged:
    mutant: Mutant
    killed_by: str | None


class Copies:
    """One copy of the repository for each thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local = threading.local()

    def one(self) -> Path:
        copy: Path | None = getattr(self._local, "copy", None)
        if copy is None:
            copy = Path(tempfile.mkdtemp(dir=self._folder))
            for name in _COPIED:
                _copy(_ROOT / name, copy / name)
            self._local.copy = copy
        return copy


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def passes(copy: Path, tests: Sequence[str], seconds: float = _SECONDS) -> bool:
    """Whether all tests pass, in time, in the copy. Raises RuntimeError if pytest could not run them."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (_KILLED, _SURVIVED):
        raise RuntimeError(
            f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == _SURVIVED


def judge(copies: Copies, mutant: Mutant) -> Judged:
    copy = copies.one()
    original = (copy / mutant.file).read_text()
    mutant.apply(copy)
    try:
        killed_by = next((test for test in mutant.tests if not passes(copy, [test])), None)
    finally:
        (copy / mutant.file).write_text(original)
    print(f"{'survived' if killed_by is None else 'killed':8}  {mutant.mistake}", flush=True)
    return Judged(mutant, killed_by)


def chosen(words: Sequence[str]) -> list[Mutant]:
    return [
        mutant
        for mutant in ALL
        if not words or any(word in mutant.file or word in mutant.mistake for word in words)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose file or mistake contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    options = parser.parse_args(arguments)
    mutants = chosen(options.words)
    if not mutants:
        print(f"no mutant matches {' '.join(options.words)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="batchline-mutants-") as folder:
        copies = Copies(Path(folder))
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        if not passes(copies.one(), tests, _SECONDS_FOR_ALL):
            print(f"the tests fail without a mutant; run them first: {' '.join(tests)}", file=sys.stderr)
            return 2
        with ThreadPoolExecutor(options.jobs) as pool:
            verdicts = list(pool.map(lambda mutant: judge(copies, mutant), mutants))
    survivors = [verdict.mutant for verdict in verdicts if verdict.killed_by is None]
    print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed")
    for mutant in survivors:
        print(f"survived: {mutant.mistake}\n  {mutant.file}\n  {mutant.before!r} -> {mutant.after!r}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
