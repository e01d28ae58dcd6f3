"""`batchline serve` as a real process: its life, its worker, its signals, and what it refuses."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai.types import Batch

from batchline.model import ids
from batchline.store.session import Session
from tests.support.builders import overrun
from tests.support.processes import batchline, simulated, wait_for_executions, write_requests
from tests.support.server_process import Served, ended, served, submit
from tests.support.waiting import LIMIT, wait_for


def test_from_the_first_key_to_the_last_line(database_url: str, tmp_path: Path) -> None:
    path = write_requests(tmp_path / "in.jsonl", 200, models=("sim-small", "sim-large"))
    with simulated() as upstream, served(database_url, tmp_path, "--upstream", upstream.url) as server:
        client = server.client()
        models = wait_for("the upstream's models", lambda: client.models.list().data)
        assert {model.owned_by for model in models} == {"default"}, "asked of the upstream"
        batch = ended(client, submit(client, path))
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert batch.usage is not None
        assert batch.usage.total_tokens > 0
        assert batch.output_file_id is not None
        lines = client.files.content(batch.output_file_id).text.splitlines()
        assert len(lines) == 200
        worker = server.wait_for_worker()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT) == 0, "".join(server.complained)
        wait_for("the worker to be gone", lambda: gone(worker))
    reported = "".join(server.complained)
    assert "/v1/batches" in reported, "requests are logged"
    assert server.key not in reported
    assert server.key[3:] not in reported

    with served(database_url, tmp_path, "--no-worker") as again:
        assert again.key == "", "the key is shown once"
        assert again.client(server.key).batches.retrieve(batch.id).status == "completed"


def test_a_worker_that_is_killed_is_started_again_and_nothing_is_lost(
    database_url: str, tmp_path: Path
) -> None:
    path = write_requests(tmp_path / "in.jsonl", 300)
    with (
        simulated("--latency", "50") as upstream,
        served(database_url, tmp_path, "--upstream", upstream.url) as server,
    ):
        client = server.client()
        batch = submit(client, path)
        wait_for_executions(upstream, 1)
        first = server.wait_for_worker()
        first.kill()
        server.wait_for_worker(other_than=first.pid)
        over = ended(client, batch)
        assert over.request_counts is not None
        assert (over.status, over.request_counts.completed) == ("completed", 300)
        assert upstream.stats()["executed"] == 300, "what was sent before is replayed, not run again"


def test_a_server_that_stops_lets_its_worker_finish_what_was_sent(database_url: str, tmp_path: Path) -> None:
    path = write_requests(tmp_path / "in.jsonl", 2000)
    # Slow enough that some lines are left, however late the signal comes.
    with simulated("--latency", "1000") as upstream:
        with served(database_url, tmp_path, "--upstream", upstream.url) as server:
            client = server.client()
            batch = submit(client, path)
            wait_for_executions(upstream, 1)
            worker = server.wait_for_worker()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(LIMIT) == 0
            assert gone(worker)
            key = server.key
        executed = upstream.stats()["executed"]
        with served(database_url, tmp_path, "--no-worker") as again:
            counts = again.client(key).batches.retrieve(batch.id).request_counts
        assert counts is not None
        assert counts.completed == executed < 2000, "all that was sent was settled, the rest waits"


def test_a_server_that_is_killed_takes_its_worker_with_it(database_url: str, tmp_path: Path) -> None:
    with served(database_url, tmp_path, "--upstream", "http://127.0.0.1:9") as server:
        worker = server.wait_for_worker()
        wait_for(
            "the worker to have begun", lambda: any("worker started" in said for said in server.complained)
        )
        server.process.kill()
        wait_for("the worker to leave", lambda: gone(worker))


def test_the_worker_runs_at_a_lower_priority_than_the_server(database_url: str, tmp_path: Path) -> None:
    with served(database_url, tmp_path, "--upstream", "http://127.0.0.1:9") as server:
        worker = server.wait_for_worker()
        wait_for(
            "the worker to have begun", lambda: any("worker started" in said for said in server.complained)
        )
        ours = psutil.Process(server.process.pid).nice()
        assert niceness_of_threads(worker) == {min(ours + 5, 19)}, "all of its threads"


def test_every_model_goes_to_its_own_upstream(database_url: str, tmp_path: Path) -> None:
    path = write_requests(tmp_path / "in.jsonl", 60, models=("sim-small", "sim-large", "other"))
    with simulated() as small, simulated() as large:
        config = tmp_path / "batchline.toml"
        config.write_text(
            f"""
            [server]
            windows = ["24h", "1h"]
            [[upstreams]]
            name = "small"
            base_url = "{small.url}"
            models = ["sim-small"]
            concurrency = 3
            [[upstreams]]
            name = "rest"
            base_url = "{large.url}/v1"
            api_key_env = "REST_KEY"
            """
        )
        refused = batchline("serve", "--config", str(config), "--database", database_url)
        assert refused.returncode == 2
        assert "REST_KEY" in refused.stderr
        with served(database_url, tmp_path, "--config", str(config), REST_KEY="very-secret-key") as server:
            client = server.client()
            owners = wait_for("the models of both upstreams", lambda: owners_of_all(client))
            assert owners.pop("sim-small") == "small"
            assert set(owners.values()) == {"rest"}
            over = ended(client, submit(client, path))
            assert over.request_counts is not None
            assert (over.status, over.request_counts.completed) == ("completed", 60)
        assert "very-secret-key" not in "".join(server.complained + server.said)
        assert (small.stats()["executed"], large.stats()["executed"]) == (20, 40)


def owners_of_all(client: openai.OpenAI) -> dict[str, str] | None:
    """Of each model, when more are listed than the settings name."""
    owners = {model.id: model.owned_by for model in client.models.list()}
    return owners if len(owners) > 1 else None


async def test_the_async_client_creates_polls_cancels_and_sees_batches_expire(
    database_url: str, tmp_path: Path
) -> None:
    few = write_requests(tmp_path / "few.jsonl", 20)
    many = write_requests(tmp_path / "many.jsonl", 3000)
    config = tmp_path / "batchline.toml"
    with simulated("--latency", "100") as upstream:
        config.write_text(
            f"""
            [server]
            windows = ["24h", "1h"]
            [[upstreams]]
            name = "only"
            base_url = "{upstream.url}"
            # So few that a batch is not over, however late it is cancelled.
            concurrency = 8
            """
        )
        with served(database_url, tmp_path, "--config", str(config)) as server:
            async with openai.AsyncOpenAI(
                api_key=server.key, base_url=f"{server.url}/v1", timeout=60
            ) as client:

                async def created(path: Path, window: Any = "24h") -> Batch:
                    file = await client.files.create(file=path, purpose="batch")
                    return await client.batches.create(
                        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=window
                    )

                async def over(batch: Batch, *ends: str) -> Batch:
                    async with asyncio.timeout(LIMIT):
                        # Clients poll: the API has no notification that they could wait for.
                        while (now := await client.batches.retrieve(batch.id)).status not in ends:  # noqa: ASYNC110
                            await asyncio.sleep(0.05)
                    return now

                done = await over(await created(few), "completed")
                assert done.request_counts is not None
                assert done.request_counts.completed == 20

                running = await created(many)
                await asyncio.to_thread(wait_for_executions, upstream, 40)
                await client.batches.cancel(running.id)
                cancelled = await over(running, "cancelled")
                expiring, executed = await created(many, "1h"), upstream.stats()["executed"]
                await asyncio.to_thread(wait_for_executions, upstream, executed + 20)
                await overrun_now(database_url, expiring)
                expired = await over(expiring, "expired")
                for ended, code in ((cancelled, "batch_cancelled"), (expired, "batch_expired")):
                    assert ended.request_counts is not None
                    assert ended.output_file_id is not None
                    assert ended.error_file_id is not None
                    output = (await client.files.content(ended.output_file_id)).text.splitlines()
                    errors = (await client.files.content(ended.error_file_id)).text.splitlines()
                    assert len(output) == ended.request_counts.completed > 0
                    assert len(output) + len(errors) == 3000
                    assert json.loads(errors[-1])["error"]["code"] == code
            assert (
                batchline(
                    "doctor", "--data-dir", str(tmp_path / "data"), "--database", database_url
                ).returncode
                == 0
            )


async def overrun_now(database_url: str, batch: Batch) -> None:
    batch_id = ids.read(ids.BATCH, batch.id)
    assert batch_id is not None
    async with Session(database_url, "test") as db:
        await overrun(db, batch_id)


def test_without_keys_it_listens_on_loopback_only(database_url: str, tmp_path: Path) -> None:
    refused = batchline("serve", "--no-auth", "--host", "0.0.0.0", "--port", "0", "--database", database_url)
    assert refused.returncode == 2
    assert "loopback" in refused.stderr
    with served(database_url, tmp_path, "--no-auth", "--no-worker") as server:
        assert server.key == ""
        assert server.client("anything").batches.list().data == []


def test_a_used_port_is_reported(database_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = batchline("serve", "--port", port, "--database", database_url, "--data-dir", str(tmp_path))
    assert refused.returncode == 2
    assert port in refused.stderr


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_wrong_settings_are_reported_before_anything_starts(tmp_path: Path, command: str) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[server]\nmax_linse = 3\n")
    refused = batchline(command, "--config", str(config), "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 2
    assert "mine.toml, line 2: server.max_linse" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_head_that_does_not_end_is_refused(database_url: str, tmp_path: Path) -> None:
    with served(database_url, tmp_path, "--no-worker") as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"GET /v1/batches HTTP/1.1\r\nhost: x\r\nx-long: ")
            # It may hang up while we are still sending, and then its answer is lost.
            answer = b" 431 "
            with suppress(ConnectionError):
                for _ in range(160):
                    connection.sendall(b"x" * 65_536)
                answer = connection.recv(65_536)
            assert b" 431 " in answer
        with server.client() as client:
            assert client.batches.list().data == []


def test_a_second_signal_ends_it_at_once(database_url: str, tmp_path: Path) -> None:
    with server_with_hanging_requests(database_url, tmp_path) as (server, worker):
        server.process.send_signal(signal.SIGTERM)
        wait_for("the server to close its door", lambda: not listens(server.url))
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LIMIT) == 0
        assert gone(worker)


def test_two_signals_reach_a_worker_that_has_not_handled_the_first(database_url: str, tmp_path: Path) -> None:
    with server_with_hanging_requests(database_url, tmp_path) as (server, worker):
        worker.suspend()
        try:
            wait_for("the worker to be suspended", lambda: set(states_of_threads(worker)) == {"T"})
            server.process.send_signal(signal.SIGTERM)
            wait_for("the server to close its door", lambda: not listens(server.url))
            server.process.send_signal(signal.SIGTERM)
            both = {signal.SIGTERM, signal.SIGINT}
            wait_for("two signals at the worker", lambda: pending_signals(worker) >= both)
        finally:
            worker.resume()
        assert server.process.wait(LIMIT) == 0
        assert gone(worker)


@contextmanager
def server_with_hanging_requests(database_url: str, folder: Path) -> Iterator[tuple[Served, psutil.Process]]:
    """A server and its worker, which waits for answers that never come."""
    path = write_requests(folder / "in.jsonl", 10)
    with (
        simulated("--hang-rate", "1") as upstream,
        served(database_url, folder, "--upstream", upstream.url) as server,
    ):
        submit(server.client(), path)
        worker = server.wait_for_worker()
        wait_for("requests that hang", lambda: upstream.stats()["requests"])
        yield server, worker


def states_of_threads(process: psutil.Process) -> list[str]:
    threads = Path("/proc", str(process.pid), "task").glob("*/stat")
    return [path.read_text().rpartition(") ")[2][0] for path in threads]


def pending_signals(process: psutil.Process) -> set[signal.Signals]:
    """Those that the whole process has not handled yet."""
    status = Path("/proc", str(process.pid), "status").read_text()
    mask = int(status.split("ShdPnd:")[1].split()[0], 16)
    return {number for number in signal.valid_signals() if mask & 1 << (number - 1)}


def niceness_of_threads(process: psutil.Process) -> set[int]:
    found = set()
    for thread in process.threads():
        # Some end meanwhile.
        with suppress(ProcessLookupError):
            found.add(os.getpriority(os.PRIO_PROCESS, thread.id))
    return found


def gone(process: psutil.Process) -> bool:
    """Also if nobody has asked for its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listens(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except ConnectionError:
        return False
    return True
