"""`batchline run` with --dedupe and --order prefix, and with lines for any path of the upstream."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.path_upstream import upstream_of_any_path
from tests.support.processes import batchline, read_lines, simulated, write_requests


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def write_prompts(path: Path, prompts: list[str], url: str = "/v1/chat/completions") -> Path:
    with path.open("w") as stream:
        for number, prompt in enumerate(prompts):
            body = {"model": "sim-small", "messages": [{"role": "user", "content": prompt}]}
            line = {"custom_id": f"q-{number}", "method": "POST", "url": url, "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


def test_identical_lines_are_sent_once(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_prompts(tmp_path / "in.jsonl", [f"Say {n % 40}." for n in range(100)])
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        done = batchline(*command, "--dedupe")
        assert int(upstream.stats()["executed"]) == 40
    assert done.returncode == 0, done.stderr
    assert "60 of 100 lines were answered by another line's answer" in done.stdout
    lines = read_lines(tmp_path / "in.output.jsonl")
    assert [line["custom_id"] for line in lines] == [f"q-{n}" for n in range(100)]
    assert len({line["id"] for line in lines}) == 100
    for number, line in enumerate(lines):
        assert line["response"] == lines[number % 40]["response"]
    assert batchline("doctor", *location).returncode == 0
    assert batchline("check", str(inputs), str(tmp_path / "in.output.jsonl")).returncode == 0


def test_the_document_counts_duplicates_and_their_tokens_once(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_prompts(tmp_path / "in.jsonl", ["Say it."] * 5)
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--dedupe", "--json", *location)
    document = json.loads(done.stdout)
    usage = read_lines(tmp_path / "in.output.jsonl")[0]["response"]["body"]["usage"]
    assert (document["completed"], document["duplicates"]) == (5, 4)
    assert document["output_tokens"] == usage["completion_tokens"]
    assert document["summary"]["duplicates"] == 4


def test_prompts_that_begin_alike_are_sent_together_and_the_output_is_in_order(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    prompts = [f"{'ABC'[n % 3] * 200} question {n}" for n in range(90)]
    inputs = write_prompts(tmp_path / "in.jsonl", prompts)
    with upstream_of_any_path() as upstream:
        done = batchline(
            *("run", str(inputs), "--upstream", upstream.url, "--order", "prefix", "--concurrency", "1"),
            *location,
        )
    assert done.returncode == 0, done.stderr
    sent = [body["messages"][0]["content"][0] for _, body in upstream.requests]
    changes = sum(before != after for before, after in pairwise(sent))
    # In the order of the file there would be 89. A span of two kinds may be claimed in parts, and a slow
    # machine claims more often.
    assert changes <= 20, "".join(sent)
    output = read_lines(tmp_path / "in.output.jsonl")
    assert [line["custom_id"] for line in output] == [f"q-{n}" for n in range(90)]


@pytest.mark.parametrize("option", [("--dedupe",), ("--order", "prefix")])
@pytest.mark.parametrize("steps", [("--steps", "1,2"), ("--sample", "2")])
def test_steps_and_samples_are_refused(
    tmp_path: Path, location: tuple[str, ...], option: tuple[str, ...], steps: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    done = batchline("run", str(inputs), "--upstream", "http://127.0.0.1:9", *option, *steps, *location)
    assert done.returncode == 2
    assert f"{option[0]} cannot be combined with steps or a sample" in done.stderr


def test_a_batch_that_began_without_them_continues_so_and_says_it(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_prompts(tmp_path / "in.jsonl", ["Say it."] * 4)
    with simulated("--error-rate", "1") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--max-attempts", "1", *location)
        assert batchline(*command).returncode != 0
        again = batchline(*command, "--dedupe", "--retry-failed")
    assert "--dedupe: this batch began without, and continues so" in again.stderr


def score_lines(path: Path, url: str) -> Path:
    line: dict[str, Any] = {
        "custom_id": "a",
        "method": "POST",
        "url": url,
        "body": {"model": "m", "text_1": "x"},
    }
    path.write_text(json.dumps(line) + "\n")
    return path


def test_lines_may_be_for_any_path_below_the_upstream(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = score_lines(tmp_path / "in.jsonl", "/v1/score")
    with upstream_of_any_path() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--json", *location)
    assert done.returncode == 0, done.stderr
    assert [path for path, _ in upstream.requests] == ["/base/v1/score"]
    assert json.loads(done.stdout)["input_tokens"] == 7


def test_rows_for_another_path_are_rendered_by_a_template(tmp_path: Path, location: tuple[str, ...]) -> None:
    rows, template = tmp_path / "rows.csv", tmp_path / "body.json"
    rows.write_text("query,document\ncats,a cat\n")
    template.write_text('{"model": "m", "query": "{{query}}", "documents": ["{{document}}"]}')
    with upstream_of_any_path() as upstream:
        command = ("run", str(rows), "--upstream", upstream.url, "--endpoint", "/v1/rerank", *location)
        refused = batchline(*command, "--model", "m", "--prompt", "{{query}}")
        done = batchline(*command, "--template", str(template))
    assert refused.returncode == 2
    assert "give --template FILE" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert upstream.requests == [("/base/v1/rerank", {"model": "m", "query": "cats", "documents": ["a cat"]})]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("/v1/../admin", "not a plain path"),
        ("/v1/score?x=1", "not a plain path"),
        ("/v1/models", "is read with GET"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
    ],
)
def test_other_paths_are_refused_with_their_line(
    tmp_path: Path, location: tuple[str, ...], url: str, why: str
) -> None:
    inputs = score_lines(tmp_path / "in.jsonl", url)
    with upstream_of_any_path() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *location)
    assert done.returncode == 2
    assert "in.jsonl:1: invalid_url" in done.stderr
    assert why in done.stderr.replace("\n", " ")
    assert upstream.requests == []
