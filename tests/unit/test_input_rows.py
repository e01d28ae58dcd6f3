"""Rows of every format, and every fault of each."""

import gzip
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import InputLimits
from batchline.files.inputs.rendering import RowTemplate
from tests.support.input_files import FORMATS, ROWS, encoded, inputs_at

HOW = RowTemplate(model="m")


def rows(path: Path, content: bytes, **options: Any) -> list[tuple[int, dict[str, Any]]]:
    path.write_bytes(content)
    return list(inputs_at(path, template=HOW, **options).rows())


@pytest.mark.parametrize("suffix", [*FORMATS, "csv.gz", "csv.zst", "jsonl.gz", "tsv.zst"])
def test_all_formats_give_the_same_rows(tmp_path: Path, suffix: str) -> None:
    assert rows(tmp_path / f"x.{suffix}", encoded(suffix)) == list(enumerate(ROWS, 1))


def test_values_of_tables_keep_their_types(tmp_path: Path) -> None:
    given = [{"n": 1, "x": 1.5, "none": None, "tags": ["a", "b"], "who": {"name": "z"}}]
    for format in ("jsonl", "parquet", "arrow"):
        assert rows(tmp_path / f"x.{format}", encoded(format, given)) == [(1, given[0])]


def test_a_text_has_one_row_for_each_line_that_is_not_blank(tmp_path: Path) -> None:
    found = rows(tmp_path / "x.txt", b"\xef\xbb\xbfone\r\n\n  two\n")
    assert found == [(1, {"text": "one"}), (3, {"text": "  two"})]


def test_blank_lines_count_as_rows_but_are_none(tmp_path: Path) -> None:
    assert rows(tmp_path / "x.csv", b"\xef\xbb\xbfa,b\n1,2\n\n3,4\n") == [
        (1, {"a": "1", "b": "2"}),
        (3, {"a": "3", "b": "4"}),
    ]


def test_numbers_go_on_from_file_to_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.jsonl"
    first.write_bytes(b"a\n1\n2\n")
    second.write_bytes(b'{"a":3}\n')
    found = inputs_at(first, second, template=HOW).rows()
    assert [(number, row["a"]) for number, row in found] == [(1, "1"), (2, "2"), (3, 3)]


def test_another_delimiter(tmp_path: Path) -> None:
    assert rows(tmp_path / "x.csv", b"a;b\n1;2\n", delimiter=";") == [(1, {"a": "1", "b": "2"})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.csv",
            b"a,b\n1,2\n3,4,5\n",
            "x.csv, row 2: found 3 fields, but the header has 2 (a, b); is a quote",
        ),
        ("x.csv", b"a,b\n1\n", "row 1: found 1 field, but the header has 2"),
        ("x.csv", b'a,b\n1,"2\n3,4\n', "row 1: not valid CSV: unexpected end of data (line 3 of the file)"),
        ("x.csv", b'a,b\n1,"2"x\n', "row 1: not valid CSV: ',' expected after '\"'"),
        (
            "x.csv",
            b"a,a\n1,2\n",
            "x.csv: the first line must name the columns, but it has the column 'a' twice",
        ),
        ("x.csv", b"a,,\n1,2,3\n", "columns without a name"),
        (
            "x.csv",
            b"a\n1\n\xff\n",
            "row 2: byte 1 of the line is not UTF-8; convert the file, for example with: iconv",
        ),
        ("x.jsonl", b'{"a": 1}\n[1]\n', "row 2: a line must be a JSON object"),
        ("x.jsonl", b'{"a": 1}\n\n{"a": \n', "row 3: not valid JSON"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "row 2: not valid JSON"),
        ("x.txt", b"one\n\xff\n", "row 2: byte 1 of the line is not UTF-8"),
        ("x.parquet", b"PAR1 but damaged PAR1", "x.parquet: not a valid Parquet file, or damaged"),
        ("x.arrow", b"ARROW1 but damaged", "x.arrow: not a valid Arrow file, or damaged"),
        ("x.arrow", b"something else altogether", "x.arrow: not a valid Arrow file, or damaged"),
    ],
)
def test_a_fault_names_the_row_and_the_way_out(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputRefused) as refused:
        rows(tmp_path / name, content)
    assert message in str(refused.value)


def test_damaged_pages_of_parquet_are_reported(tmp_path: Path) -> None:
    content = bytearray(encoded("parquet", [{"a": f"{nth * 7919}"} for nth in range(5000)]))
    content[2000:6000] = bytes(4000)
    with pytest.raises(InputRefused, match="not a valid Parquet file, or damaged"):
        rows(tmp_path / "x.parquet", bytes(content))


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.zst"])
def test_truncated_compression_is_reported_after_the_last_row(tmp_path: Path, suffix: str) -> None:
    many = [{"a": f"{nth * 7919}", "b": "x"} for nth in range(50_000)]
    content = encoded(suffix, many)
    with pytest.raises(InputRefused, match=r"after row \d+: the (gzip|zstd) data ends too early.* truncated"):
        rows(tmp_path / f"x.{suffix}", content[: len(content) // 2])


# The checksum of gzip, and all blocks of zstd from some place on.
@pytest.mark.parametrize(("suffix", "start", "end"), [("csv.gz", -8, -4), ("csv.zst", 50_000, None)])
def test_damaged_compression_is_reported(tmp_path: Path, suffix: str, start: int, end: int | None) -> None:
    content = bytearray(encoded(suffix, [{"a": f"{nth * 7919}"} for nth in range(50_000)]))
    content[start:end] = b"\xff" * len(content[start:end])
    with pytest.raises(InputRefused, match=r"x.csv.*the (gzip|zstd) data is damaged"):
        rows(tmp_path / f"x.{suffix}", bytes(content))


@pytest.mark.parametrize("suffix", ["jsonl.gz", "csv.zst", "txt.gz"])
def test_a_decompression_bomb_ends_at_the_limit(tmp_path: Path, suffix: str) -> None:
    line = "a" * 999
    text = gzip.compress(f"{line}\n".encode() * 5_000)
    content = text if suffix == "txt.gz" else encoded(suffix, [{"a": line}] * 5_000)
    assert len(content) < 60_000
    with pytest.raises(
        InputRefused, match=r"more than 1,000,000 bytes after decompression; .* --max-input-size"
    ):
        rows(tmp_path / f"x.{suffix}", content, limits=InputLimits(max_bytes=1_000_000))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_bomb_inside_a_table_ends_at_the_limit(tmp_path: Path, format: str) -> None:
    content = encoded(format, [{"a": "b" * 1000}] * 20_000)
    assert len(content) < 1_000_000
    with pytest.raises(InputRefused, match="more than 5,000,000 bytes after decompression"):
        rows(tmp_path / f"x.{format}", content, limits=InputLimits(max_bytes=5_000_000))


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.txt", b"x" * 5000), ("x.csv", b'a\n"' + b"xxxx\n" * 1000), ("x.jsonl", b"{" * 5000)],
)
def test_a_line_that_never_ends_is_not_kept_in_memory(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputRefused, match=r"row 1: .*(longer than 1,000 bytes|larger than field limit)"):
        rows(tmp_path / name, content, limits=InputLimits(max_line_bytes=1000))


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded("parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputRefused, match=r"needs pyarrow: pip install 'batchline\[tables\]'"):
        rows(tmp_path / "x.parquet", content)
    assert rows(tmp_path / "x.csv", encoded("csv")), "the other formats work"


def test_a_header_of_many_columns_is_checked_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    names = [f"c{nth}" for nth in range(100_000)]
    path.write_text(",".join(names) + "\n" + "," * (len(names) - 1) + "\n")
    began = time.process_time()
    ((_, row),) = inputs_at(path, template=RowTemplate(model="m")).rows()
    assert len(row) == len(names)
    assert time.process_time() - began < 10, "to compare all pairs takes more than a minute"
