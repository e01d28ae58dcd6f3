"""`batchline run` and `submit` with rows instead of request lines."""

import gzip
import json
import os
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.support.file_server import SECRET, file_server
from tests.support.processes import (
    PYTHON,
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    wait_for_executions,
)


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def test_a_csv_is_answered_and_only_a_changed_command_runs_again(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    table = tmp_path / "in.csv"
    table.write_text('id,language,text\na,German,"Hello, you"\nb,French,"two\nlines"\n')
    prompt = ("--prompt", "To {{ language }}: {{ text }}", "--id-column", "id", "--param", "temperature=0")
    with simulated() as upstream:
        command = ("run", str(table), "--upstream", upstream.url, "--model", "m", *location)
        done = batchline(*command, *prompt)
        assert done.returncode == 0, done.stderr
        assert "2 of 2 completed" in done.stdout
        assert [line["custom_id"] for line in read_lines(tmp_path / "in.output.jsonl")] == ["a", "b"]
        assert "finished before" in batchline(*command, *prompt).stdout
        assert upstream.stats()["executed"] == 2
        assert batchline(*command, *prompt, "--system", "Be short.").returncode == 0
        assert upstream.stats()["executed"] == 4
        template = tmp_path / "body.json.jinja"
        for content in ("{{ text }}", "{{ text }}!"):
            template.write_text('{"messages": [{"role": "user", "content": "' + content + '"}]}')
            assert batchline(*command, "--template", str(template)).returncode == 0
        assert upstream.stats()["executed"] == 8, "the content of the template counts, not its name"
    with psycopg.connect(database_url) as connection:
        bodies = connection.execute("SELECT body FROM batchline.lines ORDER BY file_no, line_no").fetchall()
    assert json.loads(bodies[0][0]) == {
        "model": "m",
        "messages": [{"role": "user", "content": "To German: Hello, you"}],
        "temperature": 0,
    }


def test_a_killed_run_of_a_compressed_pipe_goes_on(tmp_path: Path, location: tuple[str, ...]) -> None:
    rows = "prompt\n" + "".join(f"question {nth}\n" for nth in range(1500))
    table = tmp_path / "in.csv.gz"
    table.write_bytes(gzip.compress(rows.encode()))
    output = tmp_path / "out.jsonl"
    with simulated("--latency", "10") as upstream:
        options = ("--input-format", "csv", "--model", "m", "--upstream", upstream.url, "-o", str(output))
        command = [PYTHON, "-m", "batchline", "run", "-", *options, *location]
        with table.open("rb") as stdin:
            process = subprocess.Popen(command, stdin=stdin, text=True)
            wait_for_executions(upstream, 300)
            kill(process, signal.SIGKILL)
        with table.open("rb") as stdin:
            again = subprocess.run(command, stdin=stdin, capture_output=True, check=False)
        seen = upstream.stats()
    assert again.returncode == 0, again.stderr
    assert [line["custom_id"] for line in read_lines(output)] == [f"row-{nth}" for nth in range(1, 1501)]
    assert seen["executed"] == seen["distinct_keys"] == 1500
    assert not list((tmp_path / "data" / "spool").iterdir()), "also the copy of the killed run is gone"


def test_a_faulty_row_ends_the_command_and_nothing_is_stored(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    table = tmp_path / "in.csv"
    table.write_text("id,text\na,b\n")
    with simulated() as upstream:
        done = batchline(
            *(
                "run",
                str(table),
                "--upstream",
                upstream.url,
                "--model",
                "m",
                "--prompt",
                "{{ txt }}",
                *location,
            )
        )
        assert upstream.stats()["executed"] == 0
    assert done.returncode == 2
    assert "in.csv, row 1: --prompt uses 'txt', which is not a column; found id, text" in done.stderr
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM batchline.files").fetchone() == (0,)


def test_submit_reads_rows_too(tmp_path: Path, location: tuple[str, ...]) -> None:
    text = tmp_path / "in.txt"
    text.write_text("one\ntwo\n")
    options = ("--upstream", "http://127.0.0.1:9", "--model", "m", "--endpoint", "/v1/embeddings")
    done = batchline("submit", str(text), *options, "--json", *location)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["request_counts"]["total"] == 2


def test_the_secrets_of_a_url_are_never_shown(
    tmp_path: Path, location: tuple[str, ...], database_url: str
) -> None:
    with file_server() as address, simulated("--latency", "60000") as upstream:
        url = f"http://me:{SECRET}@{address}/private.csv?key={SECRET}"
        output = tmp_path / "out.jsonl"
        process = start(
            *("run", url, "--model", "m", "--upstream", upstream.url, "-o", str(output), *location)
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
    assert f"http://{address}/private.csv" in err, "the command to continue"
    assert SECRET not in first + said + out + err
    with psycopg.connect(database_url) as connection:
        names = connection.execute("SELECT filename FROM batchline.files").fetchall()
    assert names == [(f"http://{address}/private.csv",)]


def test_a_folder_and_a_pattern_do_not_send_what_batchline_wrote(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "in.csv").write_text("text\na\nb\n")
    (folder / "my.output.csv").write_text("text\nc\n")
    with simulated() as upstream:
        options = ("--upstream", upstream.url, "--model", "m", "--prompt", "{{text}}", *location)
        first = ("run", str(folder), *options, "-o", str(folder / "answers.jsonl"))
        assert "3 of 3 completed" in batchline(*first).stdout, "a name alone makes no output"
        again = batchline(*first)
        assert "finished before" in again.stdout
        assert "left out 2 files that Batchline wrote: " in again.stderr
        for given, data in ((f"{folder}/*", "data"), (str(folder), "elsewhere")):
            where = (*options[:-1], str(tmp_path / data), "-o", str(tmp_path / "b.csv"), "--force", "--fresh")
            done = batchline("run", given, *where)
            assert "3 of 3 completed" in done.stdout, done.stderr
        assert upstream.stats()["executed"] == 9
        chained = batchline("run", str(folder / "answers.jsonl"), *options[:-5], "{{custom_id}}", *location)
        assert "3 of 3 completed" in chained.stdout, chained.stderr


def test_a_prompt_without_a_column_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\na\n")
    done = batchline(
        "run", str(tmp_path / "in.csv"), "--upstream", "http://127.0.0.1:9", "--model", "m",
        "--prompt", "Translate: {text}", "--data-dir", str(tmp_path / "data"),
    )  # fmt: skip
    assert done.returncode == 2
    assert "write {{text}} instead of {text}" in done.stderr


def test_ctrl_c_while_an_input_is_read_says_how_to_continue(tmp_path: Path) -> None:
    pipe = tmp_path / "in.csv"
    os.mkfifo(pipe)
    process = start(
        "run", str(pipe), "--upstream", "http://127.0.0.1:9", "--model", "m", "--prompt", "{{text}}",
        "--data-dir", str(tmp_path / "data"),
    )  # fmt: skip
    # Opens when the command has opened its end.
    with pipe.open("wb"):
        _, said = kill(process, signal.SIGINT)
    assert process.returncode == 130
    assert f"interrupted; nothing is lost; continue with\n  batchline run {pipe} " in said
