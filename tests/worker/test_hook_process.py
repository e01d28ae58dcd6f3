"""The process of a hook: no shell, no secrets, a time limit that holds, and bounded output. On uvloop, as the
commands run."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from batchline.hooks import process
from batchline.hooks.hook import Hook
from batchline.hooks.process import KEPT, run_hook
from batchline.store.hooks import HookOutcome
from tests.support.builders import until
from tests.support.hooks import MINIMAL, python_hook, recorded, recording

pytestmark = pytest.mark.uvloop

CONTENT = json.dumps({"type": "batch.completed", "text": "ü" * 200_000}).encode()


async def run(hook: Hook, timeout: float = 60.0, content: bytes = CONTENT) -> HookOutcome:
    return await run_hook(hook, content, timeout=timeout, environment=MINIMAL)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def has_ended(pid: int) -> bool:
    return not is_running(pid)


async def test_a_hook_reads_the_whole_content_and_succeeds_with_exit_code_0(tmp_path: Path) -> None:
    assert await run(recording(tmp_path / "got")) == HookOutcome(True)
    assert recorded(tmp_path / "got") == [json.loads(CONTENT)]


async def test_a_hook_that_does_not_read_its_input_succeeds() -> None:
    assert (await run(Hook("true", ("/bin/true",)))).delivered


async def test_arguments_are_not_interpreted_by_a_shell(tmp_path: Path) -> None:
    words = ("$HOME", ";", "touch", str(tmp_path / "made"), "`id`", "$(id)", "*", "|", ">", "a  b")
    outcome = await run(Hook("echo", ("/bin/echo", *words)))
    assert outcome == HookOutcome(True, None, " ".join(words) + "\n")
    assert os.listdir(tmp_path) == []


async def test_a_hook_gets_no_variable_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_API_KEY", "sk-very-secret")
    outcome = await run(Hook("env", ("/usr/bin/env",)))
    assert outcome.output.split("\n") == [*(f"{name}={value}" for name, value in MINIMAL.items()), ""]


async def test_the_end_of_the_output_is_kept_with_the_reason_of_the_failure() -> None:
    outcome = await run(python_hook("bad", "import sys; print('started'); sys.exit('no route to host')"))
    assert not outcome.delivered
    assert outcome.error == "it ended with exit code 1"
    assert sorted(outcome.output.splitlines()) == ["no route to host", "started"]


async def test_output_that_the_worker_had_no_time_to_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the worker had been stopped from the start of the hook until after its end."""
    never = asyncio.Event()
    monkeypatch.setattr(process, "_next_block", lambda descriptor: never.wait())
    monkeypatch.setattr(process, "_LAST_OUTPUT", 0.0)
    outcome = await run(python_hook("quick", "print('last words')"))
    assert (outcome.delivered, outcome.output) == (True, "last words\n")


async def test_a_hook_that_a_signal_ends_has_failed() -> None:
    outcome = await run(python_hook("bad", "import os; os.kill(os.getpid(), 11)"))
    assert outcome == HookOutcome(False, "signal SIGSEGV ended it")


async def test_a_program_that_is_gone_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    outcome = await run(Hook("gone", (str(tmp_path / "gone"),)))
    assert outcome == HookOutcome(False, "it could not be started: no such file or directory")
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_hook_that_hangs_is_killed_after_its_time_with_all_that_it_started() -> None:
    # It ignores polite requests to end.
    code = "trap '' TERM INT; sleep 1000 & echo $!; wait; wait"
    for limit in (2.0, 20.0):
        outcome = await run(Hook("hangs", ("/bin/sh", "-c", code)), timeout=limit)
        assert outcome.error == f"it did not end within {limit:g} s and was killed"
        # On a slow machine it may not have begun in the shorter time.
        if outcome.output:
            break
    async with asyncio.timeout(120):
        await until(lambda: has_ended(int(outcome.output)))


async def test_what_a_hook_leaves_behind_is_killed_when_it_has_ended() -> None:
    outcome = await run(Hook("leaves", ("/bin/sh", "-c", "sleep 1000 & echo $!")))
    assert outcome.delivered
    async with asyncio.timeout(120):
        await until(lambda: has_ended(int(outcome.output)))


async def test_a_descendant_that_escapes_and_keeps_the_output_open_delays_nothing(tmp_path: Path) -> None:
    # It ends when the other one has left its group.
    escaped = tmp_path / "escaped"
    escape = f"setsid sh -c 'echo $$ > {escaped}; exec sleep 1000' &"
    code = f"{escape} until [ -s {escaped} ]; do sleep 0.01; done; cat {escaped}"
    async with asyncio.timeout(120):
        outcome = await run(Hook("escapes", ("/bin/sh", "-c", code)))
    assert outcome.delivered
    os.kill(int(outcome.output), signal.SIGKILL)


async def test_a_flood_of_output_is_cut_and_costs_the_worker_little() -> None:
    flood = python_hook("flood", "import os\nwhile True: os.write(1, b'x' * 65536)")
    for limit in (3.0, 30.0):
        started = time.process_time()
        outcome = await run(flood, timeout=limit)
        spent = time.process_time() - started
        assert outcome.error == f"it did not end within {limit:g} s and was killed"
        # On a slow machine it may not have begun in the shorter time.
        if outcome.output:
            break
    assert outcome.output == "x" * KEPT
    assert spent < limit / 2, "to read the flood took most of the processor"


async def test_a_hook_that_writes_megabytes_and_ends_has_succeeded_and_its_last_words_are_kept() -> None:
    code = "import sys\nfor _ in range(64): sys.stdout.write('x' * 65536)\nprint('done')"
    outcome = await run(python_hook("chatty", code))
    assert outcome.delivered
    assert outcome.output == "x" * (KEPT - 5) + "done\n"


async def test_output_is_stored_as_valid_text_without_secrets() -> None:
    code = r"import os; os.write(1, b'a\0b \xff password=hunter22 \x1b[31m')"
    outcome = await run(python_hook("binary", code))
    assert outcome.output == "a�b � password=***REDACTED*** \x1b[31m"


async def test_a_hook_is_killed_when_its_delivery_is_cancelled(tmp_path: Path) -> None:
    code = f"echo $$ > {tmp_path / 'pid'}; exec sleep 1000"
    running = asyncio.create_task(run(Hook("long", ("/bin/sh", "-c", code))))

    async def has_started() -> bool:
        return (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n")

    async with asyncio.timeout(120):
        await until(has_started)
        running.cancel()
        await asyncio.wait([running])
        await until(lambda: has_ended(int((tmp_path / "pid").read_text())))


async def test_the_event_loop_runs_while_a_hook_blocks(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    running = asyncio.create_task(run(Hook("blocks", (sys.executable, "-c", code))))
    await asyncio.sleep(0)
    go.touch()
    assert (await running).delivered
