"""`batchline worker module:app`: real processes that run the operations of a Python app."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchline import Batchline
from tests.support.otlp_collector import collecting
from tests.support.ports import following_ports
from tests.support.processes import PYTHON, kill, stop, write_requests
from tests.support.processes import submit as submit_requests
from tests.support.waiting import LIMIT, wait_for

_JOBS = """
import os, time
from pathlib import Path
from batchline import Batchline

app = Batchline()
not_an_app = {}


def note(name):
    with open("ran", "a") as file:
        file.write(f"{name}\\n")


@app.operation
async def square(number: int) -> int:
    note(number)
    return number * number


@app.operation(concurrency=2)
def gated(number: int) -> int:
    note(os.getpid())
    while not Path("gate").exists():
        time.sleep(0.01)
    return number
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "jobs.py").write_text(_JOBS)
    return folder


@pytest.fixture
def jobs(folder: Path, database_url: str) -> Iterator[Batchline]:
    """The same operations here, to submit them."""
    with Batchline(database_url, data_dir=folder / "data") as app:

        @app.operation
        async def square(number: int) -> int:
            raise AssertionError("it must run in the worker")

        @app.operation
        def gated(number: int) -> int:
            raise AssertionError("it must run in the worker")

        yield app


def _popen(folder: Path, database_url: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("BATCHLINE_")},
        "BATCHLINE_DATABASE_URL": database_url,
        "BATCHLINE_DATA_DIR": str(folder / "data"),
        # A changed file may have the same size and second, so Python would take the compiled one.
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    return subprocess.Popen(
        [PYTHON, "-m", "batchline", "worker", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@contextmanager
def worker(
    folder: Path, database_url: str, *arguments: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    process = _popen(folder, database_url, *arguments, **variables)
    try:
        yield process
    finally:
        kill(process)


def ran(folder: Path) -> list[str]:
    path = folder / "ran"
    return path.read_text().splitlines() if path.exists() else []


def test_a_worker_that_drains_reports_what_it_did(folder: Path, database_url: str, jobs: Batchline) -> None:
    batch = jobs.sync.submit(jobs.operations["square"], range(10))
    with worker(folder, database_url, "jobs:app", "--drain", "--json") as process:
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"claimed": 10, "completed": 10, "failed": 0, "held": []}
    assert [result.value for result in batch.results()] == [number**2 for number in range(10)]


def test_after_kill_9_a_second_worker_finishes_and_each_item_has_one_result(
    folder: Path, database_url: str, jobs: Batchline
) -> None:
    count = 20_000
    batch = jobs.sync.submit(jobs.operations["square"], range(count))
    with worker(folder, database_url, "jobs:app", "--lease", "2s") as process:
        wait_for("items that ran", lambda: len(ran(folder)) > 500)
        kill(process, signal.SIGKILL)
    assert batch.status().completed < count
    with worker(folder, database_url, "jobs:app", "--lease", "2s", "--drain") as process:
        process.communicate(timeout=LIMIT)
    progress = batch.wait(here=False, timeout=LIMIT)
    assert (progress.status, progress.completed, progress.failed) == ("completed", count, 0)
    assert [result.value for result in batch.results()] == [number**2 for number in range(count)]
    assert set(ran(folder)) == {str(number) for number in range(count)}


def test_sigterm_finishes_what_runs(folder: Path, database_url: str, jobs: Batchline) -> None:
    batch = jobs.sync.submit(jobs.operations["gated"], range(5))
    with worker(folder, database_url, "jobs:app") as process:
        wait_for("two items that run", lambda: len(ran(folder)) == 2)
        process.send_signal(signal.SIGTERM)
        (folder / "gate").touch()
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert "2 completed, 0 failed" in out
    assert batch.status().pending == 3


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("nothing:app", "", "there is no module 'nothing'"),
        ("jobs", "", "'jobs' names no app"),
        ("jobs:nothing", "", "module 'jobs' has no 'nothing'"),
        ("jobs:not_an_app", "", "jobs:not_an_app is of type dict, not a Batchline app"),
        ("broken:app", "import nothing_at_all", "ModuleNotFoundError: No module named 'nothing_at_all'"),
        ("broken:app", "1 / 0", "ZeroDivisionError: division by zero"),
        ("broken:app", "def", "SyntaxError: invalid syntax"),
        ("broken:app", "raise SystemExit(0)", "SystemExit"),
        ("broken:app", "from batchline import Batchline; app = Batchline()", "the app has no operations"),
    ],
)
def test_a_wrong_app_is_one_sentence_and_exit_code_2(
    folder: Path, database_url: str, target: str, text: str, message: str
) -> None:
    (folder / "broken.py").write_text(text)
    for options in ((), ("--processes", "2")):
        with worker(folder, database_url, target, *options) as process:
            out, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, out) == (2, "")
        assert message in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("jobs:app", "--database", "postgresql:///x"), "--database is the app's own"),
        (("jobs:app", "--upstream", "http://127.0.0.1:1"), "--upstream means nothing"),
        (("jobs:app", "--processes", "many"), "give a number from 1 to 1000, or auto"),
        (("--processes", "2"), "--with-upstreams are for an app"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    folder: Path, database_url: str, arguments: tuple[str, ...], message: str
) -> None:
    with worker(folder, database_url, *arguments) as process:
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert message in err


def _pids(folder: Path) -> set[int]:
    return {int(pid) for pid in ran(folder)}


def test_a_process_that_dies_is_replaced_and_a_signal_ends_all(
    folder: Path, database_url: str, jobs: Batchline
) -> None:
    batch = jobs.sync.submit(jobs.operations["gated"], range(20))
    with worker(folder, database_url, "jobs:app", "--processes", "2", "--lease", "2s") as process:
        parent = psutil.Process(process.pid)
        wait_for("two processes", lambda: len(parent.children()) == 2)
        wait_for("a process that runs items", lambda: _pids(folder))
        killed = min(_pids(folder))
        os.kill(killed, signal.SIGKILL)
        wait_for(
            "another one instead", lambda: len({child.pid for child in parent.children()} - {killed}) == 2
        )
        (folder / "gate").touch()
        assert batch.wait(here=False, timeout=LIMIT).completed == 20
        children = parent.children()
        stop(process)
    assert process.returncode == 0
    assert not any(child.is_running() for child in children)


def test_processes_end_when_their_parent_is_killed(folder: Path, database_url: str, jobs: Batchline) -> None:
    jobs.sync.submit(jobs.operations["gated"], range(4))
    with worker(folder, database_url, "jobs:app", "--processes", "1") as process:
        wait_for("an item that runs", lambda: _pids(folder))
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        (folder / "gate").touch()
        psutil.wait_procs(children, timeout=LIMIT)
    assert not any(child.is_running() for child in children)


def test_changed_code_is_used(folder: Path, database_url: str, jobs: Batchline) -> None:
    square: Any = jobs.operations["square"]
    with worker(folder, database_url, "jobs:app", "--reload") as process:
        first = jobs.sync.submit(square, [3])
        assert first.wait(here=False, timeout=LIMIT).completed == 1
        (folder / "jobs.py").write_text("def")
        (folder / "jobs.py").write_text(_JOBS.replace("number * number", "-number"))

        def negative() -> bool:
            batch = jobs.sync.submit(square, [3])
            batch.wait(here=False, timeout=LIMIT)
            return [result.value for result in batch.results()] == [-3]

        wait_for("a result of the new code", negative)
        stop(process)
    assert [result.value for result in first.results()] == [9]
    assert process.returncode == 0


def test_a_worker_without_an_app_leaves_python_items_alone(
    folder: Path, database_url: str, jobs: Batchline
) -> None:
    batch = jobs.sync.submit(jobs.operations["square"], [3])
    location = ("--database", database_url, "--data-dir", str(folder / "data"))
    requests = write_requests(folder / "requests.jsonl", 2)
    submit_requests(requests, "http://127.0.0.1:1/v1", *location)
    with worker(folder, database_url, "--max-items", "2", "--json", "--max-seconds", "20s") as process:
        out, _ = process.communicate(timeout=LIMIT)
    assert json.loads(out)["claimed"] == 2
    assert batch.status().pending == 1


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        text: bytes = answer.read()
        return text.decode()


def _metrics_urls(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        found += re.findall(r"metrics on (\S+)", line)
    return found


def test_a_worker_serves_metrics_of_its_operations(folder: Path, database_url: str, jobs: Batchline) -> None:
    with worker(folder, database_url, "jobs:app", "--metrics-port", "0") as process:
        (url,) = _metrics_urls(process, 1)
        batch = jobs.sync.submit(jobs.operations["square"], range(10))
        assert batch.wait(here=False, timeout=LIMIT).completed == 10
        jobs.sync.submit(jobs.operations["gated"], range(5))
        wait_for("two items that run", lambda: len(ran(folder)) == 12)
        completed = 'batchline_items_total{outcome="completed",upstream="python:square"} 10.0'
        wait_for("items on the page", lambda: completed in _page(url))
        waiting = r'batchline_queue_items\{model="\w*",upstream="python:gated"\} \d'
        wait_for("waiting items", lambda: re.search(waiting, _page(f"{url}/database")))
        (folder / "gate").touch()
        stop(process)
    assert process.returncode == 0


def test_each_of_several_processes_has_a_metrics_port_of_its_own(folder: Path, database_url: str) -> None:
    first = following_ports(2)
    arguments = ("jobs:app", "--processes", "2", "--metrics-port", str(first))
    with worker(folder, database_url, *arguments) as process:
        urls = _metrics_urls(process, 2)
        assert sorted(urls) == [f"http://127.0.0.1:{port}/metrics" for port in (first, first + 1)]
        assert all("batchline_items_claimed_total" in _page(url) for url in urls)
        with worker(folder, database_url, *arguments) as second:
            _, err = second.communicate(timeout=LIMIT)
        assert second.returncode == 2
        assert f"cannot listen on 127.0.0.1, port {first}" in err
        assert err.count("\n") == 1
        stop(process)
    with worker(folder, database_url, *arguments[:-1], "65535") as process:
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert "each of the 2 processes has a port of its own" in err


def test_a_worker_next_to_that_of_upstreams_counts_on_the_same_page(
    folder: Path, database_url: str, jobs: Batchline
) -> None:
    arguments = ("jobs:app", "--with-upstreams", "--metrics-port", "0")
    with worker(folder, database_url, *arguments) as process:
        (url,) = _metrics_urls(process, 1)
        batch = jobs.sync.submit(jobs.operations["square"], range(10))
        assert batch.wait(here=False, timeout=LIMIT).completed == 10
        wait_for("items on the page", lambda: 'upstream="python:square"} 10.0' in _page(url))
        assert "batchline_items_claimed_total 10.0" in _page(url)
        stop(process)


def test_a_worker_traces_its_items(folder: Path, database_url: str, jobs: Batchline) -> None:
    jobs.sync.submit(jobs.operations["square"], range(3))
    with collecting() as collector:
        variables = {"BATCHLINE_TRACES_ENDPOINT": collector.url, "NO_PROXY": "127.0.0.1"}
        with worker(folder, database_url, "jobs:app", "--drain", **variables) as process:
            process.communicate(timeout=LIMIT)
        assert len(collector.named("line")) == 3
        assert collector.named("finalize")
    assert process.returncode == 0
