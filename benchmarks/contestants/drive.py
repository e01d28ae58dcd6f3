"""python -m benchmarks.contestants.drive NAME COMMAND URL [ARGUMENT…]: drive a contestant, by its own Python.

    install URL
    accept URL COUNT                       prints `ready`, waits for a line, accepts items; prints the time
    submit URL                             prints `ready`, accepts one item per line; prints when it began
    work URL HANDLER SECONDS NOTES CONCURRENCY MEMBER
                                           prints `ready`, waits for a line, works until killed; prints when
                                           the first item came

Times are perf_counter(), the same clock in all processes of a machine. Handlers:

    nothing   does nothing
    tell      prints when it was called
    sleep     records the item, and takes SECONDS
    block     records the item; the very first call blocks the whole process for SECONDS, the others take as
              long without blocking anything
"""

import asyncio
import importlib.util
import json
import os
import sys
import time
from time import perf_counter, process_time

from benchmarks.contestants.protocol import Handler, QueueContestant, Running, payloads


def nothing() -> Handler:
    begun = False

    async def handle(nth: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            _say({"first": perf_counter(), "cpu": process_time()})

    return handle


def tell() -> Handler:
    async def handle(nth: int) -> None:
        _say(perf_counter())

    return handle


def sleep(seconds: float, notes: str) -> Handler:
    """A handler that records each call. The records survive a SIGKILL: each is one append to a file."""
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    first = nothing()

    async def handle(nth: int) -> None:
        os.write(file, f"{nth}\n".encode())
        await first(nth)
        await asyncio.sleep(seconds)

    return handle


def block(seconds: float, notes: str) -> Handler:
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(nth: int) -> None:
        is_first = os.fstat(file).st_size == 0
        os.write(file, f"begin {os.getpid()} {perf_counter()}\n".encode())
        if is_first:
            # Like a handler that computes or waits without yielding to the event loop.
            time.sleep(seconds)  # noqa: ASYNC251
        else:
            await asyncio.sleep(seconds)
        os.write(file, f"end {os.getpid()} {perf_counter()}\n".encode())

    return handle


def _handler(kind: str, seconds: float, notes: str) -> Handler:
    match kind:
        case "nothing":
            return nothing()
        case "tell":
            return tell()
        case "sleep":
            return sleep(seconds, notes)
        case "block":
            return block(seconds, notes)
    raise SystemExit(__doc__)


async def _main(name: str, command: str, url: str, *arguments: str) -> None:
    module = importlib.import_module(f"benchmarks.contestants.{name}")
    contestant: QueueContestant = module.contestant(url)
    match command:
        case "install":
            await contestant.install()
        case "accept":
            await _accept(contestant, int(arguments[0]))
        case "submit":
            await _submit(contestant)
        case "work":
            kind, seconds, notes, concurrency, member = arguments
            Running.handler = _handler(kind, float(seconds), notes)
            _say("ready")
            await _next_line()
            await contestant.work(Running.handler, int(concurrency) or None, int(member))
        case _:
            raise SystemExit(__doc__)


async def _accept(contestant: QueueContestant, count: int) -> None:
    items = payloads(count)
    await contestant.open()
    _say("ready")
    await _next_line()
    begun, cpu = perf_counter(), process_time()
    await contestant.accept(items)
    _say({"seconds": perf_counter() - begun, "cpu": process_time() - cpu})


async def _submit(contestant: QueueContestant) -> None:
    items = payloads(1)
    await contestant.open()
    _say("ready")
    while await _next_line():
        begun = perf_counter()
        await contestant.accept(items)
        _say(begun)


async def _next_line() -> str:
    """Wait for the next line. Pools connect meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    # Use uvloop if the contestant's environment has it.
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    loops = importlib.import_module("uvloop" if has_uvloop else "asyncio")
    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(_main(*sys.argv[1:]))
        # Some contestants leave pools and threads that a normal exit would wait for.
        os._exit(0)
