"""A relay is killed with SIGKILL at each step of a chunk: no line is lost, no chunk is submitted twice."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.support.builders import a_database
from tests.support.killed_relay import STEPS, ForkedRun, Forks, forks
from tests.support.processes import Upstream, read_lines, simulated, write_requests
from tests.support.relay_provider import KEY, OpenAIProvider, openai_provider

LINES = 6


@pytest.fixture(scope="module")
def provider(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAIProvider]:
    with openai_provider(server_url, template, tmp_path_factory.mktemp("provider")) as found:
        yield found


@pytest.fixture(scope="module")
def message_batches() -> Iterator[Upstream]:
    with simulated("--task", "50") as found:
        yield found


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    with forks() as found:
        yield found


@dataclass(frozen=True, slots=True)
class Runs:
    """One `run` command, which is killed at a step, and given again."""

    forked: Forks
    command: list[str]
    log: Path
    key: str

    def killed_at(self, step: str) -> None:
        self._expect(-signal.SIGKILL, step)

    def again(self, *options: str) -> None:
        self._expect(0, None, *options)

    def _expect(self, code: int, step: str | None, *options: str) -> None:
        order = ForkedRun([*self.command, *options], str(self.log), {KEY: self.key}, step)
        assert self.forked.run(order) == code, self.log.read_text()


def a_run(forked: Forks, folder: Path, database: str, upstream: str, key: str, *options: str) -> Runs:
    command = [
        *("run", str(folder / "in.jsonl"), "--upstream", upstream, "--api-key-env", KEY, "--via", "batch"),
        *("--batch-recheck", "0.1s", "--database", database, "--data-dir", str(folder / "data")),
        *("-o", str(folder / "out.jsonl"), *options),
    ]
    return Runs(forked, command, folder / "log", key)


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_was_killed_submits_nothing_twice(
    server_url: str, template: str, tmp_path: Path, provider: OpenAIProvider, forked: Forks, step: str
) -> None:
    write_requests(tmp_path / "in.jsonl", LINES)
    ran, accepted = provider.executions(), len(provider.chunks())
    with a_database(server_url, template) as database:
        runs = a_run(forked, tmp_path, database, provider.url, provider.key)
        runs.killed_at(step)
        runs.again()
    assert len(read_lines(tmp_path / "out.jsonl")) == LINES
    assert provider.executions() - ran == LINES
    chunks = provider.chunks()
    assert len(chunks) - accepted == 1
    assert len(set(chunks)) == len(chunks)


# Of Anthropic, whether a creation without an answer was accepted cannot be found out: a person decides.
HELD = ("recorded as creating", "while it is created", "created")


@pytest.mark.parametrize("step", [step for step in STEPS if "uploaded" not in step])
def test_message_batches_are_held_if_their_creation_was_interrupted(
    server_url: str, template: str, tmp_path: Path, message_batches: Upstream, forked: Forks, step: str
) -> None:
    inputs = tmp_path / "in.jsonl"
    body = '{"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}'
    inputs.write_text(
        "".join(
            f'{{"custom_id": "q-{n}", "method": "POST", "url": "/v1/messages", "body": {body}}}\n'
            for n in range(LINES)
        )
    )
    before = _accepted(message_batches)
    with a_database(server_url, template) as database:
        runs = a_run(
            forked, tmp_path, database, message_batches.url, "secret-key", "--batch-api", "anthropic"
        )
        runs.killed_at(step)
        accepted = _accepted(message_batches) - before
        with psycopg.connect(database) as connection:
            # A chunk is submitted again five minutes later at the earliest.
            connection.execute(
                "UPDATE batchline.provider_chunks SET creating_at = creating_at - interval '301 s'"
            )
        runs.again(*(("--batch-recovery", "resubmit") if step in HELD else ()))
    # Only the operator's decision makes a second submission.
    assert _accepted(message_batches) - before == (accepted + 1 if step in HELD else 1)
    assert len(read_lines(tmp_path / "out.jsonl")) == LINES


def _accepted(upstream: Upstream) -> int:
    return int(upstream.stats()["message_batches"]["batches"])
