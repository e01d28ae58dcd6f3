"""Python operations in child processes: crashes and time limits fail one item, and no child outlives its
worker. On uvloop, as the commands run."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from batchline.executors.python.judge import Judge
from batchline.executors.python.processes import ProcessCaller
from batchline.model import Ran, Retried, TaskParked
from batchline.operations.operation import make_operation
from tests.support import python_handlers as handlers
from tests.support.python_operations import (
    a_catalog,
    an_item,
    emitted_by,
    error_of,
    executing,
    result_of,
    verdict_on,
)
from tests.support.repository import ROOT
from tests.support.waiting import eventually, wait_for

pytestmark = pytest.mark.uvloop


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def in_process(function: Callable[..., Any], value: Any = 1, **keywords: Any) -> Ran:
    return await verdict_on(function, value, run_in="process", **{"concurrency": 1, **keywords})


# --- Ordinary calls ----------------------------------------------------------------------------------------


async def test_a_function_runs_in_another_process_which_is_used_again() -> None:
    operation = make_operation(handlers.pid_of, run_in="process", concurrency=1)
    async with executing(operation) as executor:
        pids = [result_of(await executor.run(an_item(operation))) for _ in range(3)]
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()
    assert not is_running(pids[0])


async def test_as_many_processes_run_as_the_operation_may_have_in_flight() -> None:
    operation = make_operation(handlers.pid_of, run_in="process", concurrency=2)
    async with executing(operation) as executor:
        # No more than have a slot: one that waits for the start of a process may be given back.
        pairs = [
            await asyncio.gather(*(executor.run(an_item(operation)) for _ in range(2))) for _ in range(3)
        ]
    assert len({result_of(verdict) for pair in pairs for verdict in pair}) == 2


async def test_an_async_function_can_run_in_a_process() -> None:
    assert result_of(await in_process(handlers.async_square, 7)) == 49


async def test_every_outcome_of_a_handler_is_the_same_as_elsewhere(log: StringIO) -> None:
    operation = make_operation(handlers.behave, run_in="process", concurrency=1, max_attempts=3)
    async with executing(operation) as executor:

        async def outcome(how: str, **keywords: Any) -> Ran:
            return await executor.run(an_item(operation, how, **keywords))

        assert result_of(await outcome("a value\0")) == "a value\0"
        raised = await outcome("raise")
        assert isinstance(raised, Retried)
        assert (raised.error_code, raised.message) == ("ValueError", "what was odd")
        assert "in behave" in log.getvalue()
        assert error_of(await outcome("raise", attempt=3)) == ("ValueError", "what was odd")
        assert error_of(await outcome("fail")) == ("not_found", "no such page")
        retried = await outcome("retry")
        assert isinstance(retried, Retried)
        assert (retried.error_code, retried.delay) == ("Retry", 30.0)
        parked = await outcome("park")
        assert isinstance(parked, TaskParked)
        assert (parked.task_id, parked.delay) == ("task-7", 45.0)
        exited = await outcome("sys.exit")
        assert isinstance(exited, Retried)
        assert exited.error_code == "SystemExit"
        assert error_of(await outcome("wrong"))[0] == "invalid_result"
        assert len(result_of(await outcome("large"))) == 16 * 2**20 - 2
        assert result_of(await outcome("stdin")) == ""
        assert error_of(await executor.run(an_item(operation, 3)))[0] == "invalid_item"
        said = result_of(await outcome("context", index=4, key="k", attempt=3, task_id="t"))
        assert said == "behave 4 k 3 True t"


async def test_what_a_handler_logs_is_in_the_log_of_its_worker(log: StringIO) -> None:
    assert result_of(await in_process(handlers.behave, "log", index=4)) == "logged"
    for part in ("a line of the child", "path=a", "operation=behave", "index=4", "warning"):
        assert part in log.getvalue()


async def test_a_log_line_of_a_child_may_have_any_number_and_text(log: StringIO) -> None:
    assert result_of(await in_process(handlers.behave, "log oddities")) == "logged"
    for part in ("half ?", f"number={2**70}", "kind=n"):
        assert part in log.getvalue()


async def test_what_a_handler_prints_is_not_lost_when_its_process_is_killed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert result_of(await in_process(handlers.behave, "print")) == "printed"
    assert "printed\n" in capfd.readouterr().out


async def test_what_a_handler_emits_comes_with_its_result() -> None:
    operation = make_operation(handlers.emit, run_in="process", concurrency=1, emits=["parse"])
    async with executing(handlers.PARSE, operation) as executor:
        verdict = await executor.run(an_item(operation, 3, key="k"))
    assert emitted_by(verdict) == [("parse", "k", f"page {n}") for n in range(3)]


async def test_what_a_handler_emits_by_name_is_checked_by_the_worker() -> None:
    operation = make_operation(handlers.emit_wrong, run_in="process", concurrency=1, emits=["parse"])
    async with executing(handlers.PARSE, operation) as executor:
        verdict = await executor.run(an_item(operation, 3))
    assert isinstance(verdict, Retried)
    assert verdict.error_code == "InvalidItem"
    assert "emitted to 'parse': Expected `str`" in verdict.message


async def test_a_chunk_runs_in_one_process_and_dies_with_it() -> None:
    operation = make_operation(handlers.chunk, run_in="process", concurrency=3, chunk=3)
    async with executing(operation) as executor:
        verdicts = await asyncio.gather(*(executor.run(an_item(operation, n)) for n in range(3)))
        assert [result_of(verdicts[0]), error_of(verdicts[1]), result_of(verdicts[2])] == [
            0,
            ("Fail", "odd"),
            20,
        ]
        verdicts = await asyncio.gather(*(executor.run(an_item(operation, n)) for n in (12, 13, 14)))
    for verdict in verdicts:
        assert isinstance(verdict, Retried)
        assert verdict.error_code == "process_died"


# --- Crashes and time limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", "it ended with exit code 7"),
        ("kill", "signal SIGKILL ended it"),
        ("segfault", "signal SIGSEGV ended it"),
        ("fork", "it ended with exit code 7"),
    ],
)
async def test_a_crash_fails_only_the_item_that_ran_there(how: str, message: str) -> None:
    # A slot for each: one that waits for the start of a process may be given back.
    operation = make_operation(handlers.crash, run_in="process", concurrency=4)
    async with executing(operation) as executor:
        items = ["fine", how, "fine", "fine"]
        verdicts = await asyncio.gather(*(executor.run(an_item(operation, item)) for item in items))
        crashed = verdicts.pop(1)
        assert [result_of(verdict) for verdict in verdicts] == ["fine"] * 3
        assert isinstance(crashed, Retried)
        assert crashed.error_code == "process_died"
        assert crashed.message == f"The process of the function has died: {message}."
        assert error_of(await executor.run(an_item(operation, how, attempt=5)))[0] == "process_died"
        assert result_of(await executor.run(an_item(operation, "after"))) == "after"


async def test_a_time_limit_reaches_a_blocking_call_that_holds_the_interpreter(tmp_path: Path) -> None:
    where = tmp_path / "pid"
    verdict = await in_process(handlers.block, str(where), timeout=0.5, max_attempts=1)
    assert error_of(verdict) == ("timeout", "The function did not end within 0.5 s.")
    assert not is_running(int(where.read_text()))


async def test_the_time_limit_does_not_count_the_start_of_the_process() -> None:
    assert result_of(await in_process(handlers.square, 3, timeout=0.2)) == 9


async def test_a_time_limit_also_kills_what_the_function_has_started(tmp_path: Path) -> None:
    where = tmp_path / "pid"
    verdict = await in_process(handlers.leave_behind, str(where), timeout=0.5)
    assert isinstance(verdict, Retried)
    assert verdict.error_code == "timeout"
    pid = int(where.read_text())
    await eventually("it has ended", lambda: not is_running(pid))


async def test_a_process_that_died_while_it_was_idle_costs_no_attempt() -> None:
    operation = make_operation(handlers.pid_of, run_in="process", concurrency=1)
    caller = ProcessCaller(operation, a_catalog(operation), Judge(operation))
    try:
        await caller.call([an_item(operation)])
        (first,) = caller.process_ids
        os.kill(first, signal.SIGKILL)
        await eventually("the end is noticed", lambda: not caller.process_ids)
        outcomes = await caller.call([an_item(operation)])
        assert outcomes is not None
        assert caller.process_ids != [first]
    finally:
        await caller.close()


async def test_the_cancellation_of_a_worker_kills_the_process(tmp_path: Path) -> None:
    where = tmp_path / "pid"
    operation = make_operation(handlers.block, run_in="process", concurrency=1)
    async with executing(operation) as executor:
        task = asyncio.create_task(_ran(executor.run(an_item(operation, str(where)))))
        await eventually("the function runs", where.exists)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        pid = int(where.read_text())
        await eventually("it has ended", lambda: not is_running(pid))


async def test_close_ends_busy_processes_and_does_not_hang(tmp_path: Path) -> None:
    where = tmp_path / "pid"
    operation = make_operation(handlers.block, run_in="process", concurrency=1)
    async with executing(operation) as executor:
        task = asyncio.create_task(_ran(executor.run(an_item(operation, str(where)))))
        await eventually("the function runs", where.exists)
    assert not is_running(int(where.read_text()))
    assert isinstance(await task, Retried)


async def test_signals_to_all_processes_leave_the_children_to_their_worker() -> None:
    assert result_of(await in_process(handlers.signal_itself)) == "alive"


async def test_programs_that_a_function_starts_can_be_ended_by_signals() -> None:
    assert result_of(await in_process(handlers.terminate_child)) == -signal.SIGTERM


async def test_items_of_a_function_that_cannot_be_imported_fail_without_a_retry_and_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, log: StringIO
) -> None:
    monkeypatch.setenv("python_child_cannot_import", "1")
    operation = make_operation(handlers.square, run_in="process", concurrency=1, max_attempts=5)
    async with executing(operation) as executor:
        for _ in range(3):
            code, message = error_of(await executor.run(an_item(operation)))
            assert code == "import_failed"
            assert "cannot import the function: ImportError: this module is broken here" in message
    assert log.getvalue().count("items fail without a retry") == 1


async def test_a_process_that_cannot_be_started_is_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    verdict = await in_process(handlers.square)
    assert isinstance(verdict, Retried)
    assert verdict.error_code == "process_not_started"


# --- Programs ----------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, ctypes, os, sys
from tests.support.python_operations import an_item, executing, result_of
from batchline.operations.importing import check_not_importing
from batchline.operations.operation import make_operation

def handler(item):
    if item == "block":
        print(os.getpid(), flush=True)
        ctypes.PyDLL(None).sleep(100_000)
    return [item, sys.argv[1:]]

operation = make_operation(handler, run_in="process", concurrency=1)

async def main():
    check_not_importing("main()")
    async with executing(operation) as executor:
        verdict = await executor.run(an_item(operation, sys.argv[1]))
        print(verdict.message if hasattr(verdict, "message") else result_of(verdict))
"""
GUARDED = PROGRAM + '\nif __name__ == "__main__":\n    asyncio.run(main())\n'
UNGUARDED = PROGRAM + "\nasyncio.run(main())\n"


def a_program(folder: Path, text: str, *arguments: str, module: bool = False) -> "subprocess.Popen[str]":
    (folder / "program.py").write_text(text)
    command = ["-m", "program"] if module else [str(folder / "program.py")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.Popen(
        [sys.executable, *command, *arguments], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
    )


@pytest.mark.parametrize("module", [False, True])
def test_a_function_of_the_program_itself_can_run_in_a_process(tmp_path: Path, module: bool) -> None:
    with a_program(tmp_path, GUARDED, "a", "b", module=module) as program:
        output, _ = program.communicate(timeout=100)
    assert output == "['a', ['a', 'b']]\n"


def test_a_program_without_a_guard_does_not_start_its_work_again(tmp_path: Path) -> None:
    with a_program(tmp_path, UNGUARDED, "a") as program:
        output, _ = program.communicate(timeout=100)
    assert "RuntimeError: main() was called while a child process imports this module" in output


def test_a_killed_worker_leaves_no_child_even_one_that_holds_the_interpreter(tmp_path: Path) -> None:
    with a_program(tmp_path, GUARDED, "block") as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        assert is_running(child)
        program.kill()
        program.wait()
        wait_for("the child has ended", lambda: not is_running(child))


def test_pydantic_is_not_imported_for_types_of_others() -> None:
    program = (
        "import sys, batchline.operations.operation as o;"
        "o.make_operation(lambda number: number, name='a');"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.fixture
def log() -> StringIO:
    stream = StringIO()
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(colors=False)],
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    return stream


async def _ran(running: Any) -> Ran:
    ran: Ran = await running
    return ran
