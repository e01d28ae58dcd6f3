"""What an input file is: by its name, its content, and the options."""

import gzip
import json
from pathlib import Path

import pytest

from batchline.files.inputs.detection import detect
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import Compression, Format, InputFile, InputLimits, stem
from tests.support.input_files import encoded

REQUEST = {"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}


def detected(path: Path, content: bytes, **options: object) -> InputFile:
    path.write_bytes(content)
    return detect(path.name, path, InputLimits(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("x.csv", Format.CSV),
        ("x.CSV.gz", Format.CSV),
        ("x.tsv.zst", Format.TSV),
        ("x.jsonl", Format.JSONL),
        ("x.ndjson", Format.JSONL),
        ("x.txt", Format.TEXT),
        ("x.parquet", Format.PARQUET),
        ("x.feather", Format.ARROW),
    ],
)
def test_the_name_tells_the_format(tmp_path: Path, name: str, format: Format) -> None:
    compression = {"gz": ".gz", "zst": ".zst"}.get(name.rpartition(".")[2], "")
    content = encoded("jsonl" + compression, [{"a": 1}])
    assert detected(tmp_path / name, content).format is format


def test_without_a_suffix_the_content_tells_the_format(tmp_path: Path) -> None:
    assert detected(tmp_path / "a", encoded("parquet")).format is Format.PARQUET
    assert detected(tmp_path / "b", encoded("arrow")).format is Format.ARROW
    assert detected(tmp_path / "c", encoded("jsonl.gz")).compression is Compression.GZIP
    assert detected(tmp_path / "d", encoded("jsonl")).format is Format.JSONL
    with pytest.raises(
        InputRefused, match=r"e: neither its name nor its content .* --input-format jsonl\|csv"
    ):
        detected(tmp_path / "e", b"id,text\n1,2\n")
    assert detected(tmp_path / "e", b"id,text\n1,2\n", requested=Format.CSV).format is Format.CSV


def test_a_workbook_of_excel_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=r"it is an Excel workbook .* save the table as CSV first"):
        detected(tmp_path / "x.xlsx", b"PK\x03\x04\x14\x00")


def test_compression_is_recognized_by_the_content(tmp_path: Path) -> None:
    assert detected(tmp_path / "x.csv", gzip.compress(b"a,b\n")).compression is Compression.GZIP
    with pytest.raises(InputRefused, match="name says gzip, but its content is not gzip"):
        detected(tmp_path / "x.csv.gz", b"a,b\n")
    with pytest.raises(InputRefused, match="Parquet inside gzip cannot be read; decompress it first"):
        detected(tmp_path / "x.parquet.gz", gzip.compress(b"PAR1"))


def test_request_lines_are_told_from_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert detected(path, b"\n\n" + json.dumps(REQUEST).encode()).is_plain
    assert detected(path, b'{"custom_id": "q", "method": "POST"}').is_envelope, "wrong, but meant as one"
    assert not detected(path, b'{"question": "?", "url": "http://x"}').is_envelope
    assert not detected(path, b'{"messages": []}').is_envelope
    assert detected(path, b"no json").is_envelope, "gets the usual errors"
    assert not detected(path, b"no json", rows_expected=True).is_envelope
    assert detected(tmp_path / "x.txt", json.dumps(REQUEST).encode()).is_plain
    assert not detected(tmp_path / "x.txt", b"What is this?").is_envelope
    compressed = detected(tmp_path / "x.jsonl.gz", gzip.compress(json.dumps(REQUEST).encode()))
    assert compressed.is_envelope
    assert not compressed.is_plain


def test_a_json_array_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=r"JSON array; write one object per line: jq"):
        detected(tmp_path / "x.json", b'[{"prompt": "a"}]')


def test_stem_drops_the_suffixes_of_format_and_compression() -> None:
    assert [stem(name) for name in ("a.csv", "a.csv.gz", "a.b.jsonl", "a.v2", "a")] == [
        *("a", "a", "a.b", "a.v2", "a")
    ]


@pytest.mark.parametrize("row", [{"url": "http://a", "body": "page text"}, {"method": "GET", "url": "/x"}])
def test_rows_may_have_columns_of_the_names_of_a_request(tmp_path: Path, row: dict[str, str]) -> None:
    content = json.dumps(row).encode()
    assert not detected(tmp_path / "a.jsonl", content).is_envelope
    assert not detected(tmp_path / "a.jsonl", content, rows_expected=True).is_envelope


def test_a_request_is_recognized_even_if_a_prompt_is_given(tmp_path: Path) -> None:
    content = json.dumps(REQUEST).encode()
    assert detected(tmp_path / "a.jsonl", content, rows_expected=True).is_envelope
    without_id = json.dumps({key: value for key, value in REQUEST.items() if key != "custom_id"}).encode()
    assert detected(tmp_path / "a.jsonl", without_id).is_envelope, "it gets the error of a request"


def test_utf_16_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="it is UTF-16; convert it: iconv -f UTF-16"):
        detected(tmp_path / "a.csv", "id,text\n1,a\n".encode("utf-16"))
