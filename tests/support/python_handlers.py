"""Functions that child processes import: well-behaved ones, and all kinds of crashes."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from batchline.operations.context import Context
from batchline.operations.operation import make_operation
from batchline.operations.outcomes import Fail, Parked, Retry


def square(number: int) -> int:
    return number * number


def pid_of(item: int) -> int:
    return os.getpid()


async def async_square(number: int) -> int:
    await asyncio.sleep(0)
    return number * number


def behave(how: str, ctx: Context) -> str | Parked:
    """One of the things that a handler can do."""
    match how:
        case "raise":
            raise ValueError("what was odd")
        case "fail":
            raise Fail("no such page", code="not_found")
        case "retry":
            raise Retry("busy", after=30)
        case "park":
            return Parked("task-7", after=45)
        case "sys.exit":
            sys.exit(3)
        case "wrong":
            return 3  # type: ignore[return-value]
        case "large":
            return "x" * (16 * 2**20 - 2)
        case "stdin":
            return sys.stdin.read()
        case "print":
            print("printed")
            return "printed"
        case "log":
            ctx.log.warning("a line of the child", path=Path("a"))
            return "logged"
        case "log oddities":
            ctx.log.warning(
                "half \ud800", number=2**70, text="half \udc00", kind=type("Name", (str,), {})("n")
            )
            return "logged"
        case "context":
            return f"{ctx.operation} {ctx.index} {ctx.key} {ctx.attempt} {ctx.last_attempt} {ctx.task_id}"
        case _:
            return how


def crash(how: str) -> str:
    """End the process, or do nothing."""
    match how:
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "fork":
            # The forked process keeps the connection with the worker open.
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(7)
    return how


def block(where: str) -> None:
    """Write the process id, and return never."""
    path = Path(where)
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    # Unlike time.sleep, this does not let other threads of the interpreter run.
    ctypes.PyDLL(None).sleep(100_000)


def leave_behind(where: str) -> None:
    """Start another process, write its id, and return never."""
    started = subprocess.Popen(["/bin/sleep", "100000"])
    path = Path(where)
    path.with_suffix(".new").write_text(str(started.pid))
    path.with_suffix(".new").rename(path)
    time.sleep(100_000)


def terminate_child(item: int) -> int:
    """The exit code of a program that gets SIGTERM."""
    with subprocess.Popen(["/bin/sleep", "100000"]) as started:
        started.terminate()
        return started.wait()


def signal_itself(item: int) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return "alive"


def parse(page: str) -> int:
    return len(page)


PARSE = make_operation(parse)


def emit(count: int, ctx: Context) -> None:
    for n in range(count):
        ctx.emit(PARSE if n % 2 else "parse", f"page {n}")


def emit_wrong(item: int, ctx: Context) -> None:
    ctx.emit("parse", item)


def chunk(numbers: list[int], ctx: Context) -> list[int | Fail]:
    assert len(ctx.items) == len(numbers)
    if 13 in numbers:
        os._exit(7)
    return [Fail("odd") if number % 2 else number * 10 for number in numbers]


if "python_child_cannot_import" in os.environ:
    raise ImportError("this module is broken here")
