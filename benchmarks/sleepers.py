"""Run comparisons that mostly wait side by side, each in a separate process.

One after the other they would take ten minutes, while the machine is idle. They measure counts, which other
sleeping processes do not change. Comparisons that measure time never run side by side.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from benchmarks import report
from benchmarks.processes import module
from benchmarks.report import Compared, Run

SLEEPERS = frozenset({"idle", "queues-idle", "queues-zombie"})


def side_by_side(names: Sequence[str], run: Run, scratch: Path) -> Iterator[Compared]:
    """Yield the result of each, as part of this run. If one fails, the others are stopped and clean up."""
    with ExitStack() as stack:
        begun = [_begin(stack, name, run, scratch) for name in names]
        for name, (process, said) in zip(names, begun, strict=True):
            if process.wait() != 0:
                said.seek(0)
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{said.read()}")
            (compared,) = report.load(_page(scratch, name)).comparisons
            yield msgspec.structs.replace(compared, run=run.date, side_by_side=True)


def _begin(stack: ExitStack, name: str, run: Run, scratch: Path) -> tuple["subprocess.Popen[bytes]", IO[str]]:
    said = stack.enter_context((scratch / f"{name}.log").open("w+"))
    page = _page(scratch, name)
    page.parent.mkdir()
    command = module("benchmarks", name, "--report", str(page), *(["--quick"] if run.quick else []))
    process = subprocess.Popen(command, stdout=said, stderr=said)
    stack.callback(_end, process)
    return process, said


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


def _page(scratch: Path, name: str) -> Path:
    return scratch / f"sleeper-{name}" / "page.md"
