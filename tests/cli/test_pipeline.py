"""`batchline pipeline`: rows through the stages of batchline.toml."""

import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import batchline, kill, logged, start, working, write_requests
from tests.support.stage_files import SUMMARIZE, TRANSLATE, stage_file
from tests.support.waiting import LIMIT, wait_for
from tests.support.worded_upstream import WordedUpstream, worded_upstream

_SAID = "You said: Translate: You said: Summarize: "


@pytest.fixture
def upstream() -> Iterator[WordedUpstream]:
    with worded_upstream() as upstream:
        yield upstream


@pytest.fixture
def folder(tmp_path: Path, upstream: WordedUpstream) -> Path:
    stage_file(tmp_path, upstream.url, SUMMARIZE, TRANSLATE)
    (tmp_path / "rows.csv").write_text("id,text\n1,wren\n2,owl\n3,eel\n")
    return tmp_path


def arguments(folder: Path, database_url: str, *more: str, given: str = "rows.csv") -> list[str]:
    return [
        *("pipeline", str(folder / given), "--stage", "summarize", "-o", str(folder / "out.jsonl")),
        *("--config", str(folder / "batchline.toml"), "--database", database_url),
        *("--data-dir", str(folder / "data"), *more),
    ]


def pipeline(
    folder: Path, database_url: str, *more: str, given: str = "rows.csv"
) -> subprocess.CompletedProcess[str]:
    return batchline(*arguments(folder, database_url, *more, given=given))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_row_has_its_columns_and_all_answers_in_the_order_of_the_input(
    folder: Path, database_url: str
) -> None:
    done = pipeline(folder, database_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 rows in ")
    assert lines(folder / "out.jsonl") == [
        {"id": id, "text": text, "summary": f"You said: Summarize: {text}", "translate": f"{_SAID}{text}"}
        for id, text in (("1", "wren"), ("2", "owl"), ("3", "eel"))
    ]
    assert not (folder / "out.errors.jsonl").exists()


def test_the_same_command_again_sends_nothing_and_fresh_sends_all(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    for more, requests in (((), 6), ((), 6), (("--fresh",), 12)):
        assert pipeline(folder, database_url, *more).returncode == 0
        assert upstream.count("messages") == requests


def test_a_changed_prompt_sends_all_rows_again(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    assert pipeline(folder, database_url).returncode == 0
    stage_file(folder, upstream.url, SUMMARIZE, TRANSLATE.replace("Translate", "To German"))
    assert pipeline(folder, database_url).returncode == 0
    assert upstream.count("messages") == 12
    assert lines(folder / "out.jsonl")[0]["translate"] == "You said: To German: You said: Summarize: wren"


def test_failures_have_the_row_the_stage_and_the_reason_and_can_run_again(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    upstream.refuse("Translate: You said: Summarize: owl", 400, "no owls")
    done = pipeline(folder, database_url, "--json")
    assert done.returncode == 1
    failure = {"row": 2, "stage": "translate", "code": "http_400", "message": "no owls"}
    report = json.loads(done.stdout)
    assert (report["complete"], report["failures"]) == (2, [failure])
    assert lines(folder / "out.errors.jsonl") == [failure]
    assert [row["id"] for row in lines(folder / "out.jsonl")] == ["1", "3"]

    upstream.forget()
    again = pipeline(folder, database_url)
    assert again.returncode == 1
    assert "row 2: translate: http_400: no owls" in again.stdout
    assert pipeline(folder, database_url, "--retry-failed").returncode == 0
    assert [row["id"] for row in lines(folder / "out.jsonl")] == ["1", "2", "3"]
    assert not (folder / "out.errors.jsonl").exists()
    assert upstream.count("messages") == 7


def test_after_kill_9_the_same_command_continues(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    upstream.hold("Translate: You said: Summarize: owl")
    process = start(*arguments(folder, database_url))
    try:
        wait_for("a request that waits", lambda: upstream.count("Translate: You said: Summarize: owl"))
    finally:
        kill(process)
    upstream.forget()
    assert pipeline(folder, database_url).returncode == 0
    assert [row["id"] for row in lines(folder / "out.jsonl")] == ["1", "2", "3"]
    # What was settled is not sent again.
    assert upstream.count('"Summarize: owl"') == 1


def test_a_worker_with_another_prompt_leaves_the_rows_to_the_same_command(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    upstream.hold("Summarize: owl")
    process = start(*arguments(folder, database_url))
    try:
        wait_for("a request that waits", lambda: upstream.count("Summarize: owl"))
    finally:
        kill(process)
    upstream.forget()
    other = folder / "other"
    other.mkdir()
    config = stage_file(other, upstream.url, SUMMARIZE.replace("Summarize", "Shorten"), TRANSLATE)
    with working(database_url, folder / "data", "--config", str(config), "--drain") as worker:
        worker.communicate(timeout=LIMIT)
    assert worker.returncode == 0
    assert pipeline(folder, database_url).returncode == 0
    assert lines(folder / "out.jsonl")[1]["translate"] == f"{_SAID}owl"
    assert upstream.count("Shorten") == 0


def _more_than(upstream: WordedUpstream, count: int) -> bool:
    return upstream.count("Summarize: owl") > count


def test_three_times_kill_9_fails_no_row(folder: Path, database_url: str, upstream: WordedUpstream) -> None:
    upstream.hold("Summarize: owl")
    for _ in range(3):
        before = upstream.count("Summarize: owl")
        process = start(*arguments(folder, database_url))
        try:
            wait_for("a request that waits", partial(_more_than, upstream, before))
        finally:
            kill(process)
    upstream.forget()
    done = pipeline(folder, database_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["id"] for row in lines(folder / "out.jsonl")] == ["1", "2", "3"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_in_flight(
    folder: Path, database_url: str, upstream: WordedUpstream, how: signal.Signals
) -> None:
    upstream.hold("Translate: You said: Summarize: owl")
    log = folder / "log"
    with logged(log, *arguments(folder, database_url)) as process:
        wait_for("a request that waits", lambda: upstream.count("Translate: You said: Summarize: owl"))
        process.send_signal(how)
        wait_for("the advice", lambda: "the same command continues the batch" in log.read_text())
        assert "app.sync" not in log.read_text()
        upstream.forget()
        process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "interrupted; nothing is lost" in log.read_text()
    assert pipeline(folder, database_url).returncode == 0
    assert upstream.count("Translate: You said: Summarize: owl") == 1


def test_a_refused_fresh_run_leaves_the_old_batch(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    assert pipeline(folder, database_url).returncode == 0
    stage_file(folder, "http://127.0.0.1:9", SUMMARIZE, TRANSLATE)
    assert pipeline(folder, database_url, "--fresh").returncode == 2
    stage_file(folder, upstream.url, SUMMARIZE, TRANSLATE)
    assert pipeline(folder, database_url).returncode == 0
    assert upstream.count("messages") == 6


def test_a_row_that_passes_one_last_stage_and_fails_in_another_counts_as_both(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    both = SUMMARIZE.replace('["translate"]', '["translate", "rate", "praise"]')
    last = ("rate", "praise")
    others = [f'[stages.{name}]\nmodel = "large"\nprompt = "{name}: {{{{ summary }}}}"' for name in last]
    stage_file(folder, upstream.url, both, TRANSLATE, *others)
    (folder / "rows.csv").write_text("id,text\n1,wren\n")
    for name in last:
        upstream.refuse(f"{name}: You said: Summarize: wren", 400, "no wrens")
    done = pipeline(folder, database_url)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("1 row in ")
    assert done.stdout.splitlines()[-1].endswith(", 1 failed; --retry-failed runs these again")
    assert len(lines(folder / "out.errors.jsonl")) == 2
    report = json.loads(pipeline(folder, database_url, "--json").stdout)
    assert (report["rows"], report["complete"], report["failed"]) == (1, 0, 1)


def test_request_lines_are_refused(folder: Path, database_url: str) -> None:
    write_requests(folder / "requests.jsonl", 2)
    done = pipeline(folder, database_url, given="requests.jsonl")
    assert done.returncode == 2
    text = " ".join(done.stderr.split())
    assert "its lines are complete requests; a pipeline takes rows" in text
    assert "use `batchline run` for requests" in text


def test_a_row_that_two_last_stages_answer_has_both_answers(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    both = SUMMARIZE.replace('["translate"]', '["translate", "rate"]')
    rate = '[stages.rate]\nmodel = "large"\nprompt = "Rate: {{ summary }}"'
    stage_file(folder, upstream.url, both, TRANSLATE, rate)
    assert pipeline(folder, database_url).returncode == 0
    assert list(lines(folder / "out.jsonl")[2]) == ["id", "text", "summary", "translate", "rate"]


def test_rows_can_go_to_stdout(folder: Path, database_url: str) -> None:
    done = pipeline(folder, database_url, "-o", "-")
    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["1", "2", "3"]
    assert done.stderr.startswith("3 rows in stdout")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--stage", "none"), "--stage none: declare it as [stages.none] in "),
        (("--fresh", "--retry-failed"), "--fresh sends every row again"),
        (("-o", "out.csv"), "rows are written as JSON Lines; give a name that ends in .jsonl"),
        (("-o", "-", "--json"), "--json prints one document on stdout"),
    ],
)
def test_wrong_options_are_refused(
    folder: Path, database_url: str, more: tuple[str, ...], message: str
) -> None:
    done = pipeline(folder, database_url, *more)
    assert done.returncode == 2
    assert message in " ".join((done.stdout + done.stderr).split())


def test_a_stage_that_two_others_emit_is_refused(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    first = '[stages.summarize]\nmodel = "m"\nprompt = "{{ text }}"\nemits = ["a", "b"]\n'
    others = [f'[stages.{name}]\nmodel = "m"\nprompt = "{{{{ text }}}}"\nemits = ["c"]\n' for name in "ab"]
    stage_file(folder, upstream.url, first, *others, '[stages.c]\nmodel = "m"\nprompt = "{{ text }}"\n')
    done = pipeline(folder, database_url)
    assert done.returncode == 2
    assert "2 stages emit 'c'" in done.stderr


def test_a_column_that_the_rows_do_not_have_is_reported_before_anything_is_stored(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    (folder / "rows.csv").write_text("id;text\n1;wren\n")
    done = pipeline(folder, database_url)
    assert done.returncode == 2
    assert "row 1: stage 'summarize': prompt uses 'text', which is not a column" in done.stderr
    assert upstream.count("messages") == 0
    assert pipeline(folder, database_url, "--delimiter", ";").returncode == 0


def test_rows_of_json_without_the_column_fail_alone(
    folder: Path, database_url: str, upstream: WordedUpstream
) -> None:
    (folder / "rows.jsonl").write_text('{"txt": "owl"}\n{"text": "wren"}\n')
    done = pipeline(folder, database_url, "--json", given="rows.jsonl")
    assert done.returncode == 1
    (failure,) = json.loads(done.stdout)["failures"]
    assert (failure["row"], failure["stage"], failure["code"]) == (1, "summarize", "invalid_item")


def test_an_upstream_that_cannot_be_reached_is_reported_before_anything_is_stored(
    folder: Path, database_url: str
) -> None:
    stage_file(folder, "http://127.0.0.1:9", SUMMARIZE, TRANSLATE)
    done = pipeline(folder, database_url)
    assert done.returncode == 2
    assert "nothing was sent" in done.stderr
