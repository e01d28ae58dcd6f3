"""Output tables: columns, formats and encodings, without a database."""

import csv
import io
import json
import struct
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from backports import zstd

from batchline.cli.joining import JoinedInputs
from batchline.files.inputs.input_set import InputSet
from batchline.files.inputs.rendering import RowTemplate
from batchline.tables import encoding, merging
from batchline.tables.columns import TableError, read_select
from batchline.tables.encoding import CsvEncoder, kind_of, widest
from batchline.tables.formats import OutputFormat, UnknownFormat, format_of_name, read_format
from batchline.tables.table import TableLines, TableSpec, TableWriter
from tests.support.input_files import FORMATS, ROWS, TRANSLATE, encoded, inputs_at

CHAT = {"model": "m", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4}


def line(number: int, body: Any = None, *, status: int = 200, error: Any = None) -> bytes:
    response = None if body is None else {"status_code": status, "request_id": "r", "body": body}
    found = {"id": f"batch_req_{'0' * 32}_{number}", "custom_id": f"q-{number}"}
    return json.dumps({**found, "response": response, "error": error}).encode() + b"\n"


def opened(lines: Sequence[bytes], block: int = 50) -> Callable[[], AsyncGenerator[bytes, None]]:
    """A stream whose blocks end anywhere."""

    async def blocks() -> AsyncGenerator[bytes, None]:
        content = b"".join(lines)
        for start in range(0, len(content), block):
            yield content[start : start + block]

    return blocks


async def table(spec: TableSpec, *streams: Sequence[bytes]) -> bytes:
    lines = tuple(opened(stream) for stream in streams)
    writer = TableWriter(spec, TableLines(lines, lines[0]))
    content = b"".join([block async for block in writer.blocks()])
    assert writer.rows == sum(map(len, streams))
    return content


async def rows(*streams: Sequence[bytes], **spec: Any) -> list[dict[str, Any]]:
    content = await table(TableSpec(OutputFormat("jsonl"), **spec), *streams)
    return [json.loads(row) for row in content.splitlines()]


async def parquet(*streams: Sequence[bytes], **spec: Any) -> Any:
    content = await table(TableSpec(OutputFormat("parquet"), **spec), *streams)
    return pyarrow.parquet.read_table(io.BytesIO(content))


# --- Formats -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("out.jsonl", "jsonl"),
        ("out.NDJSON", "jsonl"),
        ("out.csv", "csv"),
        ("out.v2.csv.gz", "csv.gz"),
        ("out.jsonl.zst", "jsonl.zst"),
        ("out.parquet", "parquet"),
        ("out", "jsonl"),
        ("answers.2026", "jsonl"),
        ("out.gz", "jsonl.gz"),
    ],
)
def test_the_name_of_a_file_tells_its_format(name: str, expected: str) -> None:
    assert str(format_of_name(name)) == expected


@pytest.mark.parametrize("name", ["out.xlsx", "out.json", "out.tsv.gz", "out.tar", "out.parquet.gz"])
def test_formats_that_are_not_written_are_refused(name: str) -> None:
    with pytest.raises(UnknownFormat):
        format_of_name(name)


@pytest.mark.parametrize("text", ["xml", "csv.bz2", "parquet.zst", ""])
def test_an_unknown_format_option_is_refused(text: str) -> None:
    with pytest.raises(UnknownFormat):
        read_format(text)


@pytest.mark.parametrize("compression", ["gz", "zst"])
async def test_compressed_tables_hold_the_same_rows_and_the_same_bytes_each_time(compression: Any) -> None:
    lines = [line(n, CHAT) for n in range(300)]
    plain = await table(TableSpec(OutputFormat("csv")), lines)
    packed = await table(TableSpec(OutputFormat("csv", compression)), lines)
    assert packed == await table(TableSpec(OutputFormat("csv", compression)), lines)
    assert len(packed) < len(plain) / 3
    assert (zlib.decompress(packed, 31) if compression == "gz" else zstd.decompress(packed)) == plain


# --- Columns -----------------------------------------------------------------------------------------------


async def test_chat_answers_become_text_tokens_and_errors_in_input_order() -> None:
    completed = [line(1, {**CHAT, "usage": USAGE}), line(4, {**CHAT, "usage": USAGE})]
    errors = [
        line(2, {"error": {"message": "no such model"}}, status=404),
        line(3, error={"code": "batch_expired", "message": "too late"}),
        line(5, "gateway", status=502),
    ]
    answer = {
        "answer": "hello",
        "finish_reason": "stop",
        "error": None,
        "input_tokens": 3,
        "output_tokens": 4,
    }
    nothing = dict.fromkeys(answer)
    assert await rows(completed, errors) == [
        {"custom_id": "q-1", **answer},
        {"custom_id": "q-2", **nothing, "error": "http_404: no such model"},
        {"custom_id": "q-3", **nothing, "error": "batch_expired: too late"},
        {"custom_id": "q-4", **answer},
        {"custom_id": "q-5", **nothing, "error": "http_502: gateway"},
    ]


async def test_the_answer_is_found_in_completions_and_responses_too() -> None:
    completion = {"choices": [{"text": "one", "finish_reason": "length"}]}
    response = {
        "object": "response",
        "status": "completed",
        "output": [{"type": "reasoning"}, {"content": [{"text": "t"}, {"text": "wo"}]}],
    }
    parts = {"choices": [{"message": {"content": [{"type": "text", "text": "x"}]}}]}
    tool = {"choices": [{"message": {"content": None, "tool_calls": []}, "finish_reason": "tool_calls"}]}
    found = await rows([line(1, completion), line(2, response), line(3, parts), line(4, tool), line(5, [])])
    assert [row["answer"] for row in found] == ["one", "two", '[{"type":"text","text":"x"}]', None, None]
    assert [row["finish_reason"] for row in found] == ["length", "completed", None, "tool_calls", None]


async def test_embeddings_become_vectors_of_floats() -> None:
    packed = b64encode(struct.pack("<3f", 0.5, 1.0, -2.0)).decode()
    lines = [
        line(1, {"data": [{"embedding": [0.5, 1, -2]}], "usage": {"prompt_tokens": 2}}),
        line(2, {"data": [{"embedding": packed}]}),
    ]
    found = await parquet(lines, [line(3, error={"code": "x", "message": "y"})])
    assert [str(field.type) for field in found.schema] == [
        "string",
        "list<element: float>",
        "string",
        "int64",
    ]
    assert found["embedding"].to_pylist() == [[0.5, 1.0, -2.0], [0.5, 1.0, -2.0], None]
    assert found["input_tokens"].to_pylist() == [2, None, None]


async def test_several_embeddings_in_one_answer_are_an_error_that_names_the_way_out() -> None:
    body = {"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]}
    with pytest.raises(TableError, match=r"q-1: the answer has 2 embeddings.*--select"):
        await rows([line(1, body)])
    columns = read_select(["custom_id", "embeddings=response.body.data[].embedding"])
    assert await rows([line(1, body)], columns=columns) == [
        {"custom_id": "q-1", "embeddings": [[1.0], [2.0]]}
    ]


async def test_other_answers_are_kept_as_json() -> None:
    assert await rows([line(1, {"results": [1]})]) == [
        {"custom_id": "q-1", "status_code": 200, "body": '{"results":[1]}', "error": None}
    ]


async def test_select_takes_names_and_expressions() -> None:
    columns = read_select(
        ["answer, error", "first=response.body.choices[0].finish_reason", "n=length(answer)"]
    )
    errors = [line(2, error={"code": "c", "message": "m"})]
    assert await rows([line(1, CHAT)], errors, columns=columns) == [
        {"answer": "hello", "error": None, "first": "stop", "n": 5},
        {"answer": None, "error": "c: m", "first": None, "n": None},
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("anwser", "there is no field of this name; choose from custom_id, answer"),
        ("response.body.id", "give NAME=EXPRESSION"),
        ("x=a[", "not a JMESPath expression"),
        ("error,error", "names the column error twice"),
    ],
)
def test_a_wrong_select_says_what_to_give(given: str, message: str) -> None:
    with pytest.raises(TableError, match=message.replace("[", r"\[")):
        read_select([given])


@pytest.mark.parametrize("expression", ["length(response.body.calls)", "response.body.choices[::0]"])
async def test_an_expression_that_fails_on_an_answer_is_empty_there_and_counted(expression: str) -> None:
    spec = TableSpec(OutputFormat("jsonl"), read_select(["custom_id", f"n={expression}"]))
    lines = opened([line(1, {**CHAT, "calls": [1]}), line(2, CHAT), line(3, error={"code": "c"})])
    writer = TableWriter(spec, TableLines((lines,), lines))
    content = b"".join([block async for block in writer.blocks()])
    found = {row["custom_id"]: row["n"] for row in map(json.loads, content.splitlines())}
    assert found["q-2"] is None
    failed = [each for each in ("q-1", "q-2") if found[each] is None]
    (note,) = writer.faults.notes()
    assert note.startswith(
        f"--select n is empty in {len(failed)} completed lines; the first is line {failed[0]}: "
    )


def test_an_expression_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(TableError, match="--select n: the expression is nested too deep"):
        read_select([f"n={'(' * 5000}a{')' * 5000}"])


ODD = [
    {"output": [{"content": 5}, {"content": [{"text": "hello"}]}]},
    {**CHAT, "usage": {"prompt_tokens": 10**20, "completion_tokens": True}},
]


@pytest.mark.parametrize("body", ODD)
async def test_an_odd_answer_leaves_out_only_what_is_odd(body: Any) -> None:
    (found,) = await rows([line(1, body)])
    assert (found["answer"], found["input_tokens"], found["output_tokens"]) == ("hello", None, None)
    assert (await parquet([line(1, body), line(2, CHAT)]))["answer"].to_pylist() == ["hello", "hello"]


@pytest.mark.parametrize("vector", ["abc", "no base64!", ["a"], [None], {}])
async def test_what_is_no_vector_is_empty(vector: Any) -> None:
    lines = [line(1, {"data": [{"embedding": vector}]}), line(2, {"data": [{"embedding": [1.0]}]})]
    assert (await parquet(lines))["embedding"].to_pylist() == [None, [1.0]]


# --- Parquet -----------------------------------------------------------------------------------------------


async def test_a_parquet_column_has_the_widest_kind_of_all_its_values() -> None:
    bodies = [{"i": 1, "f": 1, "b": True, "v": [1, 2], "m": 1}, {"i": 2, "f": 2.5, "m": "x", "d": {"k": 1}}]
    columns = read_select([f"{name}=response.body.{name}" for name in "ifbvmdn"])
    found = await parquet([line(n, body) for n, body in enumerate(bodies)], columns=columns)
    kinds = {field.name: str(field.type) for field in found.schema}
    assert kinds == {
        "i": "int64",
        "f": "double",
        "b": "bool",
        "v": "list<element: double>",
        "m": "string",
        "d": "string",
        "n": "string",
    }
    assert found.to_pylist() == [
        {"i": 1, "f": 1.0, "b": True, "v": [1.0, 2.0], "m": "1", "d": None, "n": None},
        {"i": 2, "f": 2.5, "b": None, "v": None, "m": "x", "d": '{"k":1}', "n": None},
    ]


def test_kinds_widen_alike_in_any_order() -> None:
    values: list[Any] = [None, True, 1, 2**70, 1.5, [1.0], [True], [], "x", {}]
    kinds = list(map(kind_of, values))
    assert kinds == ["none", "bool", "int", "text", "float", "floats", "text", "text", "text", "text"]
    for one in kinds:
        for other in kinds:
            assert widest(one, other) == widest(other, one)


async def test_a_large_parquet_file_has_many_row_groups_and_needs_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "_GROUP_BYTES", 2**20)
    body = {"choices": [{"message": {"content": "x" * 10_000}}]}
    lines = 5_000

    async def blocks() -> AsyncGenerator[bytes, None]:
        for number in range(lines):
            yield line(number, body)

    writer = TableWriter(TableSpec(OutputFormat("parquet")), TableLines((blocks,), blocks))
    content = bytearray()
    tracemalloc.start()
    async for block in writer.blocks():
        content += block
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = pyarrow.parquet.ParquetFile(io.BytesIO(bytes(content)))
    assert found.metadata.num_rows == writer.rows == lines
    assert found.metadata.num_row_groups > 30
    assert peak < 16 * 2**20, f"{peak / 2**20:.0f} MiB for {lines * 10_000 / 2**20:.0f} MiB of answers"


# --- CSV ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "-"]
)
def test_cells_that_a_spreadsheet_would_run_get_an_apostrophe(text: str) -> None:
    encoder = CsvEncoder(["=name"])
    content = (encoder.add([[text]], 0) + encoder.end()).decode()
    assert list(csv.reader(io.StringIO(content, newline=""))) == [["'=name"], [f"'{text}"]]


@pytest.mark.parametrize("value", ["-5", "+1.5e-3", "a=b", "", "x\ny", "x\r=1", 'q"q', "ä,ö", " =1"])
def test_other_cells_stay_as_they_are(value: str) -> None:
    encoder = CsvEncoder(["name", "x"])
    content = encoder.add([[value, 1]], 0).decode()
    assert list(csv.reader(io.StringIO(content, newline="")))[1] == [value, "1"]


async def test_numbers_and_json_are_written_without_apostrophes() -> None:
    encoder = CsvEncoder(["a", "b", "c", "d", "e"])
    assert encoder.add([[-1, -0.5, True, None, [-1]]], 0).splitlines()[1] == b"-1,-0.5,true,,[-1]"


def joined(inputs: InputSet) -> JoinedInputs:
    return JoinedInputs(inputs, inputs.fingerprint())


# --- Order and joins ---------------------------------------------------------------------------------------


async def test_lines_are_merged_by_their_numbers_wherever_blocks_end() -> None:
    streams = [[line(n) for n in range(1, 200) if n % 7 < 4], [line(n) for n in range(1, 200) if n % 7 >= 4]]
    numbers: list[int] = []
    async for some in merging.merged(*(opened(stream, 37)() for stream in streams)):
        numbers += some.numbers
    assert numbers == list(range(1, 200))


async def test_join_adds_the_columns_of_each_lines_request(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('\ufeff{"custom_id":"q-1","method":"POST","url":"/x","body":{"a":1}}\n\n')
    second.write_text('{"custom_id":"q-3","url":"/y","body":{},"error":"mine","topic":"t"}')
    found = await rows([line(1, CHAT), line(3, CHAT)], join=joined(inputs_at(first, second)))
    assert list(found[0])[:5] == ["url", "body", "input_error", "topic", "custom_id"]
    assert [(row["url"], row["body"], row["input_error"], row["topic"]) for row in found] == [
        ("/x", {"a": 1}, None, None),
        ("/y", {}, "mine", "t"),
    ]
    kinds = (await parquet([line(1, CHAT), line(3, CHAT)], join=joined(inputs_at(first, second)))).schema
    assert str(kinds.field("body").type) == "string"


@pytest.mark.parametrize("suffix", [*FORMATS, "csv.gz", "jsonl.zst"])
async def test_join_adds_the_columns_of_rows_of_any_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in.{suffix}"
    path.write_bytes(encoded(suffix))
    inputs = joined(inputs_at(path, template=msgspec.structs.replace(TRANSLATE, id_column=None)))
    found = await rows([line(1, CHAT), line(3, CHAT)], join=inputs)
    assert [{key: row[key] for key in ROWS[0]} for row in found] == [ROWS[0], ROWS[2]]


async def test_a_column_with_custom_ids_is_compared_only_if_it_has_the_ids(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("custom_id,text\nmine,a\n")
    rows_of = joined(inputs_at(path, template=RowTemplate(model="m", prompt="{{text}}")))
    assert (await rows([line(1, CHAT)], join=rows_of))[0]["input_custom_id"] == "mine"
    named = RowTemplate(model="m", prompt="{{text}}", id_column="custom_id")
    with pytest.raises(TableError, match="the input has changed"):
        await rows([line(1, CHAT)], join=joined(inputs_at(path, template=named)))


@pytest.mark.parametrize("content", ['{"custom_id":"other","url":"/x"}\n', ""])
async def test_an_input_that_has_changed_is_not_joined(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(TableError, match="the input has changed: its line 1 is not 'q-1'"):
        await rows([line(1, CHAT)], join=joined(inputs_at(path)))


@pytest.mark.parametrize("id_column", [None, "id"])
async def test_an_input_that_changes_after_it_was_read_is_not_joined(
    tmp_path: Path, id_column: str | None
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,text\nq-1,a\nq-2,b\n")
    source = joined(inputs_at(path, template=RowTemplate(model="m", prompt="x", id_column=id_column)))
    path.write_text("id,text\nq-1,A\nq-2,b\n")
    with pytest.raises(TableError, match=r"in\.csv has changed since its lines were sent"):
        await rows([line(1, CHAT), line(2, CHAT)], join=source)


async def test_an_input_that_changes_while_it_is_joined_is_an_error_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\na\n")
    spec = TableSpec(OutputFormat("csv"), join=joined(inputs_at(path, template=RowTemplate(model="m"))))
    lines = opened([line(1, CHAT)])
    blocks = TableWriter(spec, TableLines((lines,), lines)).blocks()
    await anext(blocks)
    path.write_text("text\nb\n")
    with pytest.raises(TableError, match="has changed"):
        await anext(blocks)


async def test_no_two_columns_of_a_join_have_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("answer,input_answer,error\na,b,c\n")
    source = joined(inputs_at(path, template=RowTemplate(model="m", prompt="x")))
    (found,) = await rows([line(1, CHAT)], join=source)
    assert list(found)[:4] == ["input_input_answer", "input_answer", "input_error", "custom_id"]
    assert (found["input_input_answer"], found["input_answer"]) == ("a", "b")


async def test_dates_and_decimals_of_an_input_are_joined_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    values = {"day": date(2020, 1, 2), "price": Decimal("1.50"), "part": float("nan"), "list": [1]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([values]), path)
    source = joined(inputs_at(path, template=RowTemplate(model="m", prompt="x")))
    content = await table(TableSpec(OutputFormat("csv"), join=source), [line(1, CHAT)])
    assert content.decode().splitlines()[1].startswith("2020-01-02,1.50,nan,[1],q-1,")
    assert (await parquet([line(1, CHAT)], join=source))["day"].to_pylist() == ["2020-01-02"]


async def test_a_table_without_lines_has_a_header() -> None:
    assert (await table(TableSpec(OutputFormat("csv")), [])).startswith(b"custom_id,answer")
    assert (await parquet([])).num_rows == 0
