"""The examples run unchanged against `batchline serve` with `batchline simulate` behind it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import simulated, start
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What OpenAI's client reads, for a server of our own with an embedded database."""
    folder = tmp_path_factory.mktemp("server")
    with simulated() as upstream, served(folder, upstream.url) as said:
        yield {"OPENAI_BASE_URL": f"{said['url']}/v1", "OPENAI_API_KEY": said["key"]}


@contextmanager
def served(folder: Path, upstream: str) -> Iterator[dict[str, str]]:
    process = start("serve", "--port", "0", "--upstream", upstream, "--data-dir", str(folder))
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while process.poll() is None and not (lines and "listening" in lines[-1]):
            lines.append(process.stdout.readline())
        text = "".join(lines)
        key = re.search(r"shown this once: (\S+)", text)
        url = re.search(r"listening on (\S+)/v1", text)
        assert key is not None, text
        assert url is not None, text
        yield {"key": key[1], "url": url[1]}
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(environment: dict[str, str], name: str) -> list[str]:
    return run(environment, sys.executable, str(EXAMPLES / name)).splitlines()


def test_the_official_client_in_a_few_lines(environment: dict[str, str]) -> None:
    said = example(environment, "openai_client.py")
    assert [line.split()[0] for line in said] == [f"q-{n}" for n in range(100)]
    assert all(len(line.split()) > 1 for line in said)


def test_embeddings(environment: dict[str, str]) -> None:
    said = example(environment, "embeddings.py")
    assert [line.split()[0] for line in said] == ["apple", "boat", "cloud"]
    assert all(line.endswith(" dimensions") and int(line.split()[1]) > 1 for line in said)


def test_several_models(environment: dict[str, str]) -> None:
    said = example(environment, "several_models.py")
    assert sorted(said[-3:]) == ["sim-large 100", "sim-medium 100", "sim-small 100"]


def test_curl(environment: dict[str, str]) -> None:
    answers = [json.loads(line) for line in run(environment, str(EXAMPLES / "curl.sh")).splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["q-1", "q-2", "q-3"]
    assert {answer["response"]["status_code"] for answer in answers} == {200}
