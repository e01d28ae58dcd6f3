"""Why lines failed, pauses because of failures, and the life of one line: in the commands."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from tests.support.processes import batchline, read_lines, simulated, start, status, submit, write_requests
from tests.support.waiting import LIMIT

MISSING = "404 The model `gpt-5-mini` does not exist"


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Lines for a model that the simulator has, and for one that it has not."""
    return write_requests(tmp_path / "in.jsonl", 40, models=("sim-small", "gpt-5-mini"))


def made(*arguments: str) -> dict[str, Any]:
    done = batchline(*arguments, "--json")
    assert done.returncode in (0, 1, 3), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_run_and_status_say_why_lines_failed(mixed: Path, location: tuple[str, ...]) -> None:
    with simulated("--only-listed") as upstream:
        done = batchline("run", str(mixed), "--upstream", upstream.url, *location)
        described = made("run", str(mixed), "--upstream", upstream.url, *location)
    assert done.returncode == 1
    assert f"\n  20 × {MISSING}, e.g. q-" in done.stdout
    (cause,) = described["failures"]
    assert (cause["code"], cause["count"], cause["retrying"]) == ("http_404", 20, 0)
    assert int(cause["example_custom_id"].removeprefix("q-")) % 2 == 1
    assert status(described["batch_id"], *location)["failures"] == [cause]
    text = batchline("status", described["batch_id"], *location).stdout
    assert f"  20 × {MISSING}, e.g. {cause['example_custom_id']}\n" in text


def test_causes_of_retries_are_shown_while_the_batch_runs(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    with simulated("--error-rate", "0.7", "--seed", "3") as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *location)
    assert " retrying: 50" in done.stdout
    assert "Injected fault: " in done.stdout


# Models


def test_run_and_submit_warn_of_models_that_the_upstream_does_not_list(
    mixed: Path, location: tuple[str, ...]
) -> None:
    with simulated() as upstream:
        expected = (
            f'warning: {upstream.url} does not list the model "gpt-5-mini", so its lines may fail;'
            ' it lists "sim-small", "sim-large"'
        )
        for command in ("run", "submit"):
            done = batchline(command, str(mixed), "--upstream", upstream.url, *location)
            assert done.returncode == 0
            assert done.stderr.count("warning:") == 1
            assert expected in done.stderr


def test_a_model_that_is_listed_is_no_reason_for_a_warning(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 4, models=("sim-small", "sim-large"))
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *location)
    assert (done.returncode, done.stderr) == (0, "")


class _Listing(BaseHTTPRequestHandler):
    """Answers /v1/models as the test says, and every POST well."""

    listing: ClassVar[tuple[int, bytes]]

    def do_GET(self) -> None:
        self._answer(*self.listing)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, b'{"ok": true}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def listing(status: int, body: bytes, on_get: Callable[[], None] = lambda: None) -> Iterator[str]:
    class Listing(_Listing):
        listing = (status, body)

        def do_GET(self) -> None:
            on_get()
            super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


NO_LISTS = {
    "no such route": (404, b""),
    "not json": (200, b"<html>"),
    "another shape": (200, b'{"data": {}}'),
    "empty": (200, b'{"data": []}'),
    "a prefix": (200, b'{"data": [{"id": "models/gpt-5-mini"}]}'),
}


@pytest.mark.parametrize("answer", NO_LISTS.values(), ids=NO_LISTS)
def test_an_upstream_without_a_list_gives_no_warning(
    tmp_path: Path, location: tuple[str, ...], answer: tuple[int, bytes]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2, models=("gpt-5-mini",))
    with listing(*answer) as url:
        done = batchline("run", str(inputs), "--upstream", url, *location)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["run", "submit"])
def test_models_are_checked_before_there_is_a_batch_that_a_worker_could_send(
    database_url: str, tmp_path: Path, location: tuple[str, ...], command: str
) -> None:
    inputs, found = write_requests(tmp_path / "in.jsonl", 2, models=("gpt-5-mini",)), list[Any]()

    def count_batches() -> None:
        with psycopg.connect(database_url) as connection:
            found.extend(connection.execute("SELECT count(*) FROM batchline.batches"))

    with listing(200, b'{"data": [{"id": "other"}]}', count_batches) as url:
        done = batchline(command, str(inputs), "--upstream", url, *location)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning:") == 1
    assert set(found) == {(0,)}


# Pauses


def test_run_pauses_when_its_first_lines_all_fail_alike_and_the_same_command_continues(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3000, models=("gpt-5-mini",))
    # All lines take many seconds, so that they cannot all be sent before the first failures are stored.
    with simulated("--only-listed", "--latency", "50") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        slowly = (*command, "--concurrency", "8")
        done = batchline(*slowly)
        assert done.returncode == 3, done.stderr
        assert "paused: the first lines all fail alike" in done.stderr
        assert "remove the cause, then continue with\n  batchline run" in done.stderr
        assert MISSING in done.stdout
        first = int(upstream.stats()["requests"])
        assert 50 <= first < 3000
        assert not (tmp_path / "in.output.jsonl").exists()

        again = made(*slowly)
        second = int(upstream.stats()["requests"])
        assert again["paused"] == {"rule": "alike", "threshold": 50}
        assert again["interrupted"] is False
        assert second - first >= 50, "it does not stop for the failures before"

        ended = batchline(*command, "--max-failed", "none", "--concurrency", "64")
        assert ended.returncode == 1
        assert int(upstream.stats()["requests"]) == 3000, "each line was sent once"
    assert len(read_lines(tmp_path / "in.output.errors.jsonl")) == 3000


def test_max_failed_pauses_a_submitted_batch_and_watch_says_how_to_continue(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2000, models=("sim-small", "gpt-5-mini"))
    # All lines take many seconds, so that they cannot all be sent before the first failures are stored.
    with simulated("--only-listed", "--latency", "50") as upstream:
        options = ("--upstream", upstream.url, "--max-failed", "1%", *location)
        batch = made("submit", str(inputs), *options)["id"]
        watching = start("watch", batch, *location)
        workers = [start("worker", "--drain", "--concurrency", "4", *location) for _ in range(2)]
        for worker in workers:
            worker.communicate(timeout=LIMIT)
        output, errors = watching.communicate(timeout=LIMIT)
        assert watching.returncode == 3, (output, errors)
        assert f"batchline resume {batch}" in output
        found = status(batch, *location)
        assert found["status"] == "paused"
        assert found["paused"] == {"rule": "max_failed", "threshold": 20}
        assert 20 < found["request_counts"]["failed"] < 1000
        assert found["request_counts"]["in_progress"] == 0

        assert batchline("resume", batch, *location).returncode == 0
        assert status(batch, *location)["paused"] is None


def test_a_limit_that_means_nothing_is_refused_before_anything_is_sent(
    mixed: Path, location: tuple[str, ...]
) -> None:
    for command in ("run", "submit"):
        done = batchline(
            command, str(mixed), "--upstream", "http://127.0.0.1:9", "--max-failed", "lots", *location
        )
        assert done.returncode == 2
        assert "--max-failed 'lots': give a number of lines such as 100" in done.stderr


# The life of a line


def test_why_tells_the_attempts_of_a_line_and_where_its_time_went(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 40)
    with simulated("--error-rate", "0.5", "--latency", "50", "--seed", "3") as upstream:
        batch = made("run", str(inputs), "--upstream", upstream.url, "--concurrency", "4", *location)
    lives = [made("why", batch["batch_id"], f"q-{n}", *location) for n in (0, 20, 39)]
    for life in lives:
        assert sum(life["parts"].values()) == pytest.approx(life["seconds"])
        assert sum(each["seconds"] for each in life["attempts"]) == pytest.approx(life["seconds"])
        last = life["attempts"][-1]
        assert last["attempt"] == len(life["attempts"])
        if life["state"] == "completed":
            assert last["parts"]["upstream"] >= 0.049
            assert last["error_code"] is None
        for failed in life["attempts"][:-1]:
            assert failed["error_code"] in ("http_500", "http_503")
            assert failed["message"].startswith("Injected fault")
        assert all(each["parts"]["backoff"] > 0 for each in life["attempts"][1:])
    text = batchline("why", batch["batch_id"], "q-39", *location).stdout
    assert text.startswith(f"q-39  line 40, {lives[2]['state']} after {lives[2]['seconds']:.3f} s")
    assert "settling" in text


def test_why_of_a_line_that_waits_and_of_one_that_does_not_exist(
    mixed: Path, location: tuple[str, ...]
) -> None:
    batch = submit(mixed, "http://127.0.0.1:9", *location)
    life = made("why", batch, "q-3", *location)
    assert life["state"] == "pending"
    assert life["parts"]["waiting"] == life["seconds"] > 0
    gone = batchline("why", batch, "q-99", *location)
    assert gone.returncode == 2
    assert "has no item 'q-99'" in gone.stderr
