"""Blocking calls, and one app in several threads and event loops."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batchline import Batchline, ItemFailed
from tests.support.waiting import LIMIT, wait_for


@pytest.fixture
def sync_app(database_url: str, tmp_path: Path) -> Iterator[Batchline]:
    with Batchline(database_url, data_dir=tmp_path / "data") as app:

        @app.operation
        def square(number: int) -> int:
            return number * number

        yield app


@pytest.fixture
def square(sync_app: Batchline) -> Any:
    return sync_app.operations["square"]


def test_everything_in_one_call(sync_app: Batchline, square: Any) -> None:
    assert sync_app.map(square, range(5)) == [0, 1, 4, 9, 16]
    assert sync_app.map(square, []) == []
    assert sync_app.sync.call(square, 7) == 49


def test_a_batch_has_the_same_calls(sync_app: Batchline, square: Any) -> None:
    batch = sync_app.sync.submit(square, [1], hold=True)
    assert batch.append([2, 3]) == 2
    batch.release()
    batch.pause()
    batch.resume()
    assert batch.wait().completed == 3
    assert batch.status().status == "completed"
    assert [result.value for result in batch.results()] == [1, 4, 9]
    assert next(batch.results()).value == 1
    assert batch.retry() == 0
    found = sync_app.sync.batch(batch.id)
    assert found.id == batch.id
    found.delete()
    with pytest.raises(LookupError):
        batch.status()
    other = sync_app.sync.submit(square, [1])
    other.cancel()
    assert other.wait().status == "cancelled"


async def test_on_a_running_loop_blocking_calls_name_the_call_to_await(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    with pytest.raises(RuntimeError, match=r"use `await app\.amap`"):
        app.map(same, [1])
    with pytest.raises(RuntimeError, match=r"use `await app\.submit`"):
        app.sync.submit(same, [1])
    with pytest.raises(RuntimeError, match=r"use `await app\.call`"):
        app.sync.call(same, 1)
    with pytest.raises(RuntimeError, match=r"use `await batch\.wait`"):
        batch.sync.wait()
    with pytest.raises(RuntimeError, match="use `async for"):
        next(batch.sync.results())
    with pytest.raises(RuntimeError, match=r"use `await worker\.serve\(\)`"):
        app.worker().run()
    with pytest.raises(RuntimeError, match="use `async with app`"), app:
        pass


def test_several_threads_share_an_app(sync_app: Batchline, square: Any) -> None:
    with ThreadPoolExecutor(4) as threads:
        mapped = list(threads.map(lambda start: sync_app.map(square, [start, start + 1]), range(4)))
    assert mapped == [[number**2, (number + 1) ** 2] for number in range(4)]


def test_several_event_loops_share_an_app(sync_app: Batchline, square: Any) -> None:
    assert asyncio.run(sync_app.amap(square, [1, 2])) == [1, 4]
    assert asyncio.run(sync_app.amap(square, [3])) == [9]
    with ThreadPoolExecutor(2) as threads:
        mapped = list(threads.map(lambda start: asyncio.run(sync_app.amap(square, [start])), range(2)))
    assert mapped == [[0], [1]]
    assert sync_app.map(square, [4]) == [16]


def test_closing_an_app_closes_what_a_running_loop_has_open(database_url: str, tmp_path: Path) -> None:
    app = Batchline(database_url, data_dir=tmp_path / "data")

    @app.operation
    async def same(number: int) -> int:
        return number

    used, closed = threading.Event(), threading.Event()

    async def use() -> list[int]:
        found = await app.amap(same, [1])
        used.set()
        await asyncio.to_thread(closed.wait)
        return found

    with ThreadPoolExecutor(1) as threads:
        using = threads.submit(asyncio.run, use())
        used.wait(LIMIT)
        with app:
            pass
        closed.set()
        assert using.result() == [1]


def test_an_app_can_be_used_again_after_it_was_closed(sync_app: Batchline, square: Any) -> None:
    assert sync_app.map(square, [2]) == [4]
    sync_app.__exit__(None, None, None)
    assert sync_app.map(square, [3]) == [9]


def test_errors_of_items_are_raised_in_the_calling_thread(sync_app: Batchline) -> None:
    @sync_app.operation(max_attempts=1)
    def refusing(number: int) -> int:
        raise ValueError("no")

    with pytest.raises(ItemFailed, match="ValueError"):
        sync_app.map(refusing, [1])


_SCRIPT = """
import os, pathlib, time
from batchline import Batchline

app = Batchline()

@app.operation
def slow(number: int) -> int:
    pathlib.Path("running").touch()
    time.sleep(number)
    return number

@app.operation
async def square(number: int) -> int:
    return number * number

if __name__ == "__main__":
    print(app.map(square, range(5)))
    if "SLOW" in os.environ:
        app.map(slow, [1])
"""


def _started(folder: Path, **environment: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", str(script)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


HERE = "no worker of a Python app is connected, so the items run in this process\n"


def _without_delays(err: str) -> str:
    """Without what asyncio says in development mode if a step took a tenth of a second."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("Executing <"))


def test_a_program_that_closes_nothing_ends_without_a_warning(database_url: str, tmp_path: Path) -> None:
    process = _started(tmp_path, BATCHLINE_DATABASE_URL=database_url, BATCHLINE_DATA_DIR=str(tmp_path / "d"))
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, _without_delays(err)) == (0, "[0, 1, 4, 9, 16]\n", HERE)


def test_ctrl_c_ends_a_program_that_waits(database_url: str, tmp_path: Path) -> None:
    process = _started(
        tmp_path, BATCHLINE_DATABASE_URL=database_url, BATCHLINE_DATA_DIR=str(tmp_path / "d"), SLOW="1"
    )
    wait_for("an item that runs", (tmp_path / "running").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert re.search(r'the batch has not ended: continue with app\.sync\.batch\("batch_\w+"\)\.wait\(\)', err)


def test_the_embedded_database_is_the_default(tmp_path: Path) -> None:
    environment = {"BATCHLINE_DATABASE_URL": "", "BATCHLINE_DATA_DIR": str(tmp_path / "d")}
    process = _started(tmp_path, **environment)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (0, "[0, 1, 4, 9, 16]\n")
    created, rest = _without_delays(err).split("\n", 1)
    assert created.startswith("creating an embedded PostgreSQL; this takes some seconds, once")
    assert rest == HERE
    assert not (tmp_path / "d" / "postgres" / "postmaster.pid").exists()
    process = _started(tmp_path, **environment)
    assert _without_delays(process.communicate(timeout=LIMIT)[1]) == HERE


def test_a_child_process_that_imports_an_unguarded_program_says_what_to_do(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "unguarded.py").write_text(
        "from batchline import Batchline\n"
        "app = Batchline()\n"
        "@app.operation(run_in='process', max_attempts=1)\n"
        "def cube(number: int) -> int:\n"
        "    return number ** 3\n"
        "app.map(cube, [1])\n"
    )
    environment = {"BATCHLINE_DATABASE_URL": database_url, "BATCHLINE_DATA_DIR": str(tmp_path / "d")}
    done = subprocess.run(
        [sys.executable, "unguarded.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr
