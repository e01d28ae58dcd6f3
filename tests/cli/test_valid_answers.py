"""`--schema` and `--require`: answers are checked, requested again, and kept if they never pass."""

import hashlib
import json
from pathlib import Path

import psycopg
import pytest

from tests.support.processes import batchline, read_lines, simulated, status, write_requests

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["spam", "ham"]}},
    "required": ["label"],
    "additionalProperties": False,
}
GOOD = ("--answer", '{"label": "spam"}')


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


@pytest.fixture
def schema(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(SCHEMA))
    return ("--schema", str(path))


def test_bad_answers_are_asked_for_again_until_they_match(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...], database_url: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 40)
    with simulated(*GOOD, "--bad-answers", "1") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *schema, *location)
        done = batchline(*command)
        assert done.returncode == 0, done.stderr
        assert upstream.stats()["executed"] == 80
    answers = [line["response"]["body"]["choices"][0] for line in read_lines(tmp_path / "in.output.jsonl")]
    assert [json.loads(each["message"]["content"]) for each in answers] == [{"label": "spam"}] * 40
    with psycopg.connect(database_url) as connection:
        attempts = connection.execute(
            "SELECT attempt, error_code, count(*) FROM batchline.retry_attempts GROUP BY 1, 2 ORDER BY 1"
        ).fetchall()
        counted = connection.execute("SELECT input_tokens, output_tokens FROM batchline.batches").fetchone()
    assert attempts == [(1, "invalid_output", 40)]
    used = [line["response"]["body"]["usage"] for line in read_lines(tmp_path / "in.output.jsonl")]
    assert counted is not None
    assert counted[0] > sum(each["prompt_tokens"] for each in used), "the tokens of bad answers count, too"


def test_the_manifest_of_checked_answers_has_the_digest_of_the_input(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    with simulated(*GOOD) as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *schema, *location)
        assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "in.output.jsonl.manifest.json").read_text())
    digest = hashlib.sha256(inputs.read_bytes()).hexdigest()
    assert [(each["name"], each["sha256"]) for each in manifest["inputs"]] == [("in.jsonl", digest)]


def test_a_line_that_never_passes_fails_keeps_its_last_answer_and_can_be_retried(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 8)
    with simulated(*GOOD, "--bad-answers", "1") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--max-attempts", "1", *schema, *location)
        done = batchline(*command)
        assert done.returncode == 1, done.stderr
        assert "invalid_output" in done.stdout
        failed = read_lines(tmp_path / "in.output.errors.jsonl")
        assert {line["error"]["code"] for line in failed} == {"invalid_output"}
        assert all(line["response"]["body"]["choices"] for line in failed)
        # The retry begins with the last answer and its problem.
        again = batchline("retry", "@1", "--code", "invalid_output", *location, "--json")
        assert again.returncode == 0, again.stderr
        done = batchline(*command)
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 8


def test_the_fields_of_a_schema_keep_their_order(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    """Models write them in this order, and PostgreSQL would sort them: then the label would come first."""
    fields = '{"reasoning": {"type": "string"}, "label": {"pattern": "\\u0000|[a-z]"}}'
    schema = tmp_path / "answer.json"
    schema.write_text(f'{{"type": "object", "properties": {fields}}}')
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    done = batchline("submit", str(inputs), "--upstream", "http://a", "--schema", str(schema), *location)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT settings -> 'answers' ->> 'schema' FROM batchline.batches"
        ).fetchone()
    assert row is not None
    assert list(json.loads(row[0])["properties"]) == ["reasoning", "label"]


def test_a_schema_that_refers_to_itself_does_not_stop_the_run(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    """To list what is wrong with a deep expression would take twice as long for each level: hours."""
    alternatives = [
        {"properties": {"left": {"$ref": "#"}, "op": {"const": op}}, "type": "object", "required": ["left"]}
        for op in "+-*/"
    ]
    schema = tmp_path / "answer.json"
    schema.write_text(json.dumps({"oneOf": [*alternatives, {"type": "number"}]}))
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    answer = '{"op": "+", "left": ' * 40 + '"?"' + "}" * 40
    with simulated("--answer", answer) as upstream:
        done = batchline(
            "run",
            *(str(inputs), "--upstream", upstream.url, "--schema", str(schema), "--max-attempts", "2"),
            *location,
        )
    assert done.returncode == 1, done.stderr
    assert "3 × invalid_output The answer does not match the schema" in done.stdout
    assert len(read_lines(tmp_path / "in.output.errors.jsonl")) == 3


def test_an_upstream_without_response_format_fails_no_line_even_if_each_has_one_attempt(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 60)
    with simulated(*GOOD, "--no-response-format") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--max-attempts", "1", *schema, *location)
        done = batchline(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 60


def test_a_worker_checks_answers_of_submitted_batches(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with simulated(*GOOD, "--bad-answers", "1", "--no-response-format") as upstream:
        done = batchline("submit", str(inputs), "--upstream", upstream.url, "--json", *schema, *location)
        assert done.returncode == 0, done.stderr
        batch = json.loads(done.stdout)["id"]
        worked = batchline("worker", "--drain", *location)
        assert worked.returncode == 0, worked.stderr
    counts = status(batch, *location)["request_counts"]
    assert (counts["completed"], counts["failed"]) == (20, 0)


def test_a_required_finish_reason_is_asked_for_again(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with simulated(*GOOD, "--bad-answers", "1") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--require", "finish_reason=stop")
        done = batchline(*command, *location)
        assert done.returncode == 0, done.stderr
    finished = [line["response"]["body"]["choices"][0] for line in read_lines(tmp_path / "in.output.jsonl")]
    assert {each["finish_reason"] for each in finished} == {"stop"}
    assert all(each["message"]["content"] for each in finished)


def test_other_rules_are_another_run(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with simulated(*GOOD) as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        assert batchline(*command).returncode == 0
        assert batchline(*command, *schema).returncode == 0
        assert upstream.stats()["executed"] == 10, "answers that were not checked are not reused"
        assert "finished before" in batchline(*command, *schema).stdout
        inputs.write_text(inputs.read_text().replace("q-0", "q-x"))
        done = batchline(*command, *schema)
        assert "5 reused" in done.stdout, "checked answers are"
        assert upstream.stats()["executed"] == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--schema", "missing.json"), "--schema missing.json cannot be read: No such file or directory"),
        (("--require", "length"), "--require 'length': give finish_reason=VALUE"),
        (("--require", "answer", "--provider", "openai-background"), "do not work with --provider"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, location: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    done = batchline("run", str(inputs), "--upstream", "http://127.0.0.1:9", *options, *location)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON Schema is an object"),
        ('{"type": "nonsense"}', "not a JSON Schema: at /type: "),
        ('{"properties": {"a": {"pattern": "(?=a)b"}}}', "at /properties/a/pattern"),
        ('{"pattern": "(?=a)b"}', "without look-around and back-references"),
        ('{"pattern": "(a{900}){900}"}', "write patterns short"),
    ],
)
def test_a_bad_schema_is_refused(
    tmp_path: Path, location: tuple[str, ...], content: str, message: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    done = batchline("run", str(inputs), "--upstream", "http://127.0.0.1:9", "--schema", str(bad), *location)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_answers_without_text_are_refused_before_anything_is_sent(
    tmp_path: Path, location: tuple[str, ...], schema: tuple[str, ...]
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}
    inputs = tmp_path / "in.jsonl"
    inputs.write_text(json.dumps(line) + "\n")
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, *schema, *location)
        assert upstream.stats()["requests"] == 0
    assert done.returncode == 2
    assert "answers of /v1/embeddings have no text to check" in " ".join(done.stderr.split())
