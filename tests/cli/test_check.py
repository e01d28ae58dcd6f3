"""`batchline check`: exit codes, messages and digests, on real files."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.processes import batchline, simulated, write_requests

ANSWERED = b'{"custom_id":"q-0","response":{"status_code":200,"body":{}}}\n'


def answers(path: Path, custom_ids: list[str]) -> Path:
    lines = [{"custom_id": each, "response": {"status_code": 200, "body": {}}} for each in custom_ids]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_files_of_others_are_checked_without_a_manifest(tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 4)
    good = answers(tmp_path / "out.jsonl", ["q-0", "q-1", "q-2", "q-3"])
    done = batchline("check", str(inputs), str(good))
    assert (done.returncode, done.stdout) == (0, "clean: 4 requests, each answered once; no manifest\n")
    bad = answers(tmp_path / "bad.jsonl", ["q-0", "q-2", "q-1", "q-1", "x"])
    with bad.open("a") as stream:
        stream.write("{\n")
    done = batchline("check", str(inputs), str(bad))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "findings: 1 out of order, 1 invalid json, 1 missing, 1 duplicated, 1 unknown"
    )
    assert "in.jsonl:4: missing: 'q-3' has neither an answer nor an error" in done.stderr
    found = json.loads(batchline("check", str(inputs), str(bad), "--json").stdout)
    assert found["requests"] == 4
    assert {"problem": "missing", "file": "in.jsonl", "line": 4, "custom_id": "q-3"}.items() <= next(
        each for each in found["findings"] if each["problem"] == "missing"
    ).items()


def test_any_order_accepts_another_order_and_nothing_else(tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    mixed = answers(tmp_path / "out.jsonl", ["q-2", "q-0", "q-1"])
    assert batchline("check", str(inputs), str(mixed)).returncode == 1
    assert batchline("check", str(inputs), str(mixed), "--any-order").returncode == 0
    short = answers(tmp_path / "short.jsonl", ["q-2", "q-0"])
    done = batchline("check", str(inputs), str(short), "--any-order")
    assert done.returncode == 1
    assert "out of order" not in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "No such file or directory"),
        ("out.csv", b"a,b\n", "is a table without a manifest"),
        ("out.xlsx", b"", "check reads JSON Lines"),
    ],
)
def test_files_that_cannot_be_read_are_an_error_of_their_own(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = batchline("check", str(inputs), str(tmp_path / name))
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "out.jsonl.gz",
            gzip.compress(ANSWERED + b"x" * 1_000_000, mtime=0)[:-12],
            "after line 1: the gzip data ends too early",
        ),
        ("out.jsonl.zst", b"no", "after line 0: the zstd data is damaged"),
        (
            "out.jsonl.gz",
            gzip.compress(ANSWERED + b"x" * 70_000_000, 1),
            "after line 1: a line is longer than",
        ),
    ],
)
def test_a_damaged_file_is_a_finding_that_names_it(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    (tmp_path / name).write_bytes(content)
    done = batchline("check", str(inputs), str(tmp_path / name))
    assert done.returncode == 1
    assert f"{name}: damaged: {message}" in done.stderr
    assert "'q-1' has neither an answer nor an error" in done.stderr


def test_lines_that_are_nested_too_deep_are_findings(tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    output = answers(tmp_path / "out.jsonl", ["q-0"])
    deep = '{"custom_id": "deep", "x": ' + "[" * 5000 + "]" * 5000 + "}\n"
    for path in (inputs, output):
        path.write_text(path.read_text() + deep)
    done = batchline("check", str(inputs), str(output))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "out.jsonl:2: invalid_json" in done.stderr


@pytest.mark.parametrize("id_column", [None, "id"])
def test_the_answers_to_rows_of_several_inputs_are_checked(
    tmp_path: Path, database_url: str, id_column: str | None
) -> None:
    (tmp_path / "sub").mkdir()
    first, second = tmp_path / "in.csv", tmp_path / "sub" / "in.csv"
    first.write_text("id;text\n1;a\n2;b\n")
    second.write_text("id;text\n3;c\n")
    output = tmp_path / "out.jsonl"
    options = ("--model", "m", "--prompt", "{{text}}", "--delimiter", ";", "-o", str(output))
    ids = () if id_column is None else ("--id-column", id_column)
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with simulated() as upstream:
        done = batchline(
            "run", str(first), str(second), *options, *ids, "--upstream", upstream.url, *location
        )
        assert done.returncode == 0, done.stderr
    checked = ("check", str(first), str(second), "--output", str(output))
    clean = "clean: 3 requests, each answered once; digests as in the manifest\n"
    assert batchline(*checked).stdout == clean
    assert batchline("check", str(second), str(first), "-o", str(output)).stdout == clean, "in any order"
    done = batchline("check", str(first), str(output))
    assert done.returncode == 1
    assert "the batch has more inputs: in.csv; give all of them" in done.stderr
    lines = output.read_text().splitlines(keepends=True)
    output.write_text("".join(lines[:2]))
    done = batchline(*checked)
    assert "out.jsonl: digest_mismatch" in done.stderr
    assert "inputs:3: missing: " in done.stderr


def test_several_inputs_of_request_lines_are_checked(tmp_path: Path) -> None:
    first, second = write_requests(tmp_path / "a.jsonl", 2), write_requests(tmp_path / "b.jsonl", 3)
    second.write_text("".join(second.read_text().splitlines(keepends=True)[2:]))
    output = answers(tmp_path / "out.jsonl", ["q-0", "q-1", "q-2"])
    done = batchline("check", str(first), str(second), "--output", str(output))
    assert done.stdout == "clean: 3 requests, each answered once; no manifest\n"
    done = batchline("check", str(first), str(second), str(output), str(output))
    assert done.returncode == 2
    assert "for several inputs, INPUT… --output OUTPUT" in done.stderr


def test_of_rows_and_their_answers_the_digests_are_checked(tmp_path: Path, database_url: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with simulated() as upstream:
        done = batchline("run", str(rows), "--model", "m", "--upstream", upstream.url, *location)
        assert done.returncode == 0, done.stderr
    output = tmp_path / "rows.output.jsonl"
    done = batchline("check", str(rows), str(output))
    clean = "clean: 2 requests, each answered once; digests as in the manifest\n"
    assert (done.returncode, done.stdout) == (0, clean)
    done = batchline("check", str(rows), str(output), str(tmp_path / "rows.output.errors.jsonl"))
    assert (done.returncode, done.stdout) == (0, clean), "a batch without failures has no error file"
    rows.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
    assert "rows.jsonl: digest_mismatch" in batchline("check", str(rows), str(output)).stderr
    other = answers(tmp_path / "other.jsonl", ["row-1", "row-2"])
    done = batchline("check", str(rows), str(other))
    assert done.returncode == 2
    assert "rows.jsonl is a table without a manifest" in " ".join(done.stderr.split())


def test_files_of_run_are_clean_until_one_of_them_changes(tmp_path: Path, database_url: str) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    output, errors = tmp_path / "out.jsonl.gz", tmp_path / "out.errors.jsonl"
    table = tmp_path / "out.csv"
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with simulated("--error-rate", "0.5") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--max-attempts", "1", *location)
        assert batchline(*command, "-o", str(output)).returncode == 1
        assert batchline(*command, "-o", str(table)).returncode == 1
    done = batchline("check", str(inputs), str(output), str(errors))
    assert done.stdout == "clean: 30 requests, each answered once; digests as in the manifest\n"
    assert batchline("check", str(inputs), str(table)).stdout == "clean: digests as in the manifest\n"
    assert batchline("check", str(inputs), str(output)).stdout == done.stdout, "it finds the error file"
    errors.rename(tmp_path / "moved.jsonl")
    done = batchline("check", str(inputs), str(output))
    assert "out.errors.jsonl: count_mismatch: the batch has this error file, and it is missing" in done.stderr
    (tmp_path / "moved.jsonl").rename(errors)
    table.write_text(table.read_text().replace("q-1", "q-2"))
    assert "out.csv: digest_mismatch" in batchline("check", str(inputs), str(table)).stderr
    lines = errors.read_text().splitlines()
    errors.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    done = batchline("check", str(inputs), str(output), str(errors))
    assert done.returncode == 1
    assert "out.errors.jsonl: digest_mismatch" in done.stderr
    assert "out.errors.jsonl:2: out_of_order" in done.stderr
    inputs.write_text(inputs.read_text() + "\n")
    assert "in.jsonl: digest_mismatch" in batchline("check", str(inputs), str(output), str(errors)).stderr
