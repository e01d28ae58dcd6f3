"""`batchline.run`: what it returns for each kind of rows, and how it continues."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import polars
import psycopg
import pyarrow
import pytest

import batchline
from batchline import Answers, BatchlineError, InvalidRow, RunPaused
from batchline.store import doctor
from batchline.store.session import Session
from tests.support.processes import PYTHON, Upstream, kill, simulated
from tests.support.repository import ROOT
from tests.support.scripted_upstream import an_upstream_that_refuses, answers_well, upstream_that
from tests.support.scripted_upstream import answers as says
from tests.support.waiting import LIMIT, wait_for

KILLED = """
import sys, batchline
database, data_dir, upstream, count = sys.argv[1:]
batchline.run(
    [f"question {n}" for n in range(int(count))],
    model="m", upstream=upstream, database=database, data_dir=data_dir, progress=False,
)
"""


@pytest.fixture
def where(database_url: str, tmp_path: Path) -> dict[str, Any]:
    return {"model": "m", "database": database_url, "data_dir": tmp_path / "data", "progress": False}


def test_texts_become_answers_in_their_order(upstream: Upstream, where: dict[str, Any]) -> None:
    texts = [f"question {n}" for n in range(50)]
    found = batchline.run(texts, upstream=upstream.url, **where)
    assert isinstance(found, Answers)
    assert len(found) == 50
    assert all(isinstance(answer, str) and answer for answer in found)
    assert found.errors == [None] * 50
    backwards = batchline.run(texts[::-1], upstream=upstream.url, **where)
    assert backwards == found[::-1]


@pytest.mark.parametrize(
    ("keywords", "maximum"),
    [({"concurrency": "auto:3"}, 3), ({"concurrency": 1}, 1), ({"concurrency": "auto"}, 40), ({}, 40)],
)
def test_concurrency_is_a_number_or_found_by_measuring(
    where: dict[str, Any], keywords: dict[str, Any], maximum: int
) -> None:
    texts = [f"question {n}" for n in range(40)]
    with simulated("--latency", "20") as upstream:
        batchline.run(texts, upstream=upstream.url, **keywords, **where)
        peak = upstream.stats()["peak_in_flight"]
    assert peak <= maximum
    # Without a number, it begins with more than one and fewer than all.
    assert keywords.get("concurrency") == 1 or 1 < peak < len(texts)


def test_edited_rows_reuse_earlier_answers(upstream: Upstream, where: dict[str, Any]) -> None:
    batchline.run(["a", "b", "c"], upstream=upstream.url, **where)
    batchline.run(["a", "other", "c"], upstream=upstream.url, **where)
    assert upstream.stats()["executed"] == 4
    batchline.run(["a", "b", "c"], upstream=upstream.url, fresh=True, **where)
    assert upstream.stats()["executed"] == 7


def test_dicts_get_the_answer_as_a_column(upstream: Upstream, where: dict[str, Any]) -> None:
    rows = ({"id": n, "text": f"t{n}"} for n in range(3))
    found = batchline.run(rows, upstream=upstream.url, prompt="{{id}}: {{text}}", output="reply", **where)
    assert [list(row) for row in found] == [["id", "text", "reply", "reply_error"]] * 3
    assert [row["id"] for row in found] == [0, 1, 2]
    assert all(row["reply"] and row["reply_error"] is None for row in found)


def test_a_pandas_frame_keeps_its_index_and_values(upstream: Upstream, where: dict[str, Any]) -> None:
    frame = pandas.DataFrame(
        {
            "text": ["a", None],
            "count": pandas.array([1, None], dtype="Int64"),
            "at": pandas.to_datetime(["2026-01-02", None]),
        },
        index=[7, 9],
    )
    found = batchline.run(frame, upstream=upstream.url, prompt="{{text}} {{count}} {{at}}", **where)
    assert isinstance(found, pandas.DataFrame)
    assert list(found.columns) == ["text", "count", "at", "answer", "answer_error"]
    assert list(found.index) == [7, 9]
    assert found["answer"].notna().all()
    assert list(frame.columns) == ["text", "count", "at"]


def test_a_polars_frame_gets_two_columns(upstream: Upstream, where: dict[str, Any]) -> None:
    frame = polars.DataFrame({"text": ["a", None, "c"]})
    found = batchline.run(frame, upstream=upstream.url, prompt="say {{text}}", **where)
    assert isinstance(found, polars.DataFrame)
    assert found.schema == {
        "text": polars.String,
        "answer": polars.String,
        "answer_error": polars.String,
    }
    assert found["answer"].null_count() == 0
    with pytest.raises(TypeError, match=r"give rows\.collect\(\)"):
        batchline.run(frame.lazy(), upstream=upstream.url, prompt="say {{text}}", **where)


def test_an_arrow_table_gets_two_columns(upstream: Upstream, where: dict[str, Any]) -> None:
    table = pyarrow.table({"text": ["a", "b"]})
    found = batchline.run(table, upstream=upstream.url, prompt="say {{text}}", **where)
    assert found.column_names == ["text", "answer", "answer_error"]
    assert found.schema.field("answer").type == pyarrow.string()
    assert found["answer"].null_count == 0
    assert found["answer_error"].null_count == 2


def test_embeddings_are_lists_of_numbers(upstream: Upstream, where: dict[str, Any]) -> None:
    found = batchline.run(["a", "b"], upstream=upstream.url, endpoint="/v1/embeddings", **where)
    assert [len(vector) for vector in found] == [8, 8]


def test_no_rows_need_no_database(tmp_path: Path) -> None:
    found = batchline.run([], model="m", upstream="http://127.0.0.1:1", data_dir=tmp_path / "data")
    assert found == []
    assert not (tmp_path / "data").exists()


async def test_rows_that_fail_have_none_and_the_reason(where: dict[str, Any]) -> None:
    refusal = json.dumps({"error": {"message": "too long"}}).encode()
    async with upstream_that(says(200, b"{}"), says(400, refusal), answers_well) as scripted:
        found = await batchline.arun(
            ["a", "b"], upstream=scripted.url, concurrency=1, max_failed="none", **where
        )
        assert sorted(found, key=str) == ["Grüße 🎉", None]
        assert sorted(filter(None, found.errors)) == ["http_400: too long"]
        again = await batchline.arun(
            ["a", "b"], upstream=scripted.url, concurrency=1, retry_failed=True, **where
        )
    assert list(again) == ["Grüße 🎉"] * 2


async def test_an_answer_that_does_not_match_the_schema_is_asked_for_again(where: dict[str, Any]) -> None:
    schema = {"type": "object", "required": ["label"]}

    def body(text: str) -> bytes:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return json.dumps({"id": "1", "choices": [choice]}).encode()

    async with upstream_that(says(200, b"{}"), says(200, body("x")), says(200, body('{"label": 1}'))) as to:
        found = await batchline.arun(["a"], upstream=to.url, schema=schema, **where)
    assert list(found) == ['{"label": 1}']


async def test_a_batch_that_is_paused_says_why_and_continues(where: dict[str, Any]) -> None:
    refusal = json.dumps({"error": {"message": "no such model"}}).encode()
    # More than may wait to be settled: the upstream cannot outrun the first settle.
    texts = [f"t{n}" for n in range(5000)]
    async with upstream_that(says(200, b"{}"), says(404, refusal)) as scripted:
        with pytest.raises(RunPaused, match=r"no such model.*the same call again"):
            await batchline.arun(texts, upstream=scripted.url, concurrency=4, **where)
        scripted.behaviours[:] = [answers_well]
        found = await batchline.arun(texts, upstream=scripted.url, **where)
    assert any(found)
    assert len(scripted.requests) < 2 * len(texts)


def test_a_killed_program_continues_where_it_was(
    where: dict[str, Any], database_url: str, tmp_path: Path
) -> None:
    with simulated("--latency", "100", "--concurrency", "10") as upstream:
        command = [PYTHON, "-c", KILLED, database_url, str(tmp_path / "data"), upstream.url, "200"]
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        with psycopg.connect(database_url, autocommit=True) as connection:

            def stored() -> int:
                row = connection.execute("SELECT count(*) FROM batchline.results").fetchone()
                return int(row[0]) if row else 0

            wait_for("some answers", lambda: stored() >= 20)
            kill(first)
        texts = [f"question {n}" for n in range(200)]
        found = batchline.run(texts, upstream=upstream.url, **where)
        seen = upstream.stats()
    assert all(found)
    assert (seen["executed"], seen["keys_executed_twice"]) == (200, 0)


async def test_the_database_is_consistent(upstream: Upstream, where: dict[str, Any], db: Session) -> None:
    await batchline.arun(["a", "b"], upstream=upstream.url, **where)
    assert (await doctor.examine(db)).clean


def test_a_placeholder_without_a_column_names_the_row(upstream: Upstream, where: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidRow, match=r"rows\[1\]: prompt uses 'b', which is not a column; found a"
    ) as raised:
        batchline.run([{"a": 1, "b": 2}, {"a": 3}], upstream=upstream.url, prompt="{{a}}{{b}}", **where)
    assert raised.value.index == 1
    assert upstream.stats()["executed"] == 0


def test_a_value_that_is_not_json_names_the_row(where: dict[str, Any]) -> None:
    with pytest.raises(InvalidRow, match=r"rows\[1\]: .* type object"):
        batchline.run([{"a": 1}, {"a": object()}], upstream="http://127.0.0.1:1", prompt="{{a}}", **where)


def test_an_upstream_that_is_not_there_is_an_error_before_anything_is_stored(
    where: dict[str, Any], database_url: str
) -> None:
    taken, url = an_upstream_that_refuses()
    with taken, pytest.raises(BatchlineError, match="nothing was sent"):
        batchline.run(["a"], upstream=url, **where)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM batchline.batches").fetchone() == (0,)


@pytest.mark.parametrize(
    ("rows", "keywords", "message"),
    [
        (["a"], {"upstream": "x"}, "http://"),
        (["a"], {"prompt": "{{ a"}, "prompt: line 1"),
        (["a"], {"prompt": "Say {text}"}, "write {{text}} instead of {text}"),
        (["a"], {"endpoint": "/v1/nothing"}, "give one of /v1/chat/completions"),
        (["a"], {"endpoint": "/v1/embeddings", "system": "s"}, "takes no system message"),
        (["a"], {"params": {"messages": []}}, "give 'messages' as prompt=… instead"),
        (["a"], {"max_attempts": 0}, "max_attempts must be a whole number"),
        (["a"], {"concurrency": "some"}, 'concurrency must be "auto"'),
        (["a"], {"max_failed": "many"}, "max_failed"),
        (["a"], {"schema": {"type": "nothing"}}, "not a JSON Schema"),
        ([{"answer": 1}], {"prompt": "{{answer}}"}, "have a column 'answer' already; give output="),
    ],
)
def test_wrong_keywords_are_refused(rows: list[Any], keywords: dict[str, Any], message: str) -> None:
    given = {"model": "m", "upstream": "http://127.0.0.1:1", **keywords}
    with pytest.raises(ValueError, match=message.replace("{", r"\{").replace("(", r"\(")):
        batchline.run(rows, **given)


@pytest.mark.parametrize("rows", ["text", b"bytes", {"a": 1}, 7, ["a", {"b": 1}], [1, 2], [{1: "a"}]])
def test_other_rows_are_refused(rows: Any) -> None:
    with pytest.raises(TypeError, match="rows"):
        batchline.run(rows, model="m", upstream="http://127.0.0.1:1")


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="no keyword 'promt'"):
        batchline.run(["a"], model="m", upstream="http://127.0.0.1:1", **{"promt": "x"})  # type: ignore[call-overload]


async def test_on_an_event_loop_it_names_the_call_to_await(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"await batchline\.arun"):
        batchline.run(["a"], model="m", upstream="http://127.0.0.1:1")
    # The loop of a notebook waits for the cell.
    monkeypatch.setitem(sys.modules, "ipykernel", asyncio)
    assert batchline.run([], model="m", upstream="http://127.0.0.1:1") == []


def test_pandas_and_others_are_not_imported() -> None:
    others = ("pandas", "polars", "pyarrow", "openai")
    code = f"import sys, batchline; batchline.run; print([n for n in {others} if n in sys.modules])"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout.strip() == "[]"
