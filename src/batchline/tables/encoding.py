"""Encodes rows as JSON Lines, CSV or Parquet, in blocks of bytes."""

import csv
import io
import re
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal, Protocol

import msgspec

from batchline.tables.columns import MAX_INT, TableError

# What a column of a Parquet file holds. Text also holds JSON. A vector is an embedding, of short floats.
ColumnKind = Literal["none", "bool", "int", "float", "floats", "vector", "text"]

Row = Sequence[Any]

_encode = msgspec.json.Encoder().encode
# Rows and bytes of lines that one row group holds at most, about.
_GROUP_ROWS = 50_000
_GROUP_BYTES = 32 * 2**20
# How a formula begins, in any of the programs; and plain numbers, which may begin the same way.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
# Programs may drop them when they read a cell.
_INVISIBLE = "\x00\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Up to here, a float holds every integer.
_MAX_EXACT = 2**53


class Encoder(Protocol):
    def add(self, rows: Sequence[Row], size: int) -> bytes:
        """Encode rows that come from `size` bytes of lines."""
        ...

    def end(self) -> bytes: ...


class JsonlEncoder:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def add(self, rows: Sequence[Row], size: int) -> bytes:
        return b"".join(_encode(dict(zip(self._names, row, strict=True))) + b"\n" for row in rows)

    def end(self) -> bytes:
        return b""


class CsvEncoder:
    """CSV with a header. A text that a spreadsheet would run as a formula gets an apostrophe in front."""

    def __init__(self, names: Sequence[str]) -> None:
        self._text = io.StringIO(newline="")
        # Before Python 3.13, a carriage return inside a cell is quoted only if it also ends lines.
        self._writer = csv.writer(self._text, lineterminator="\r\n")
        self._writer.writerow(map(_cell, names))

    def add(self, rows: Sequence[Row], size: int) -> bytes:
        self._writer.writerows([_cell(value) for value in row] for row in rows)
        return self.end()

    def end(self) -> bytes:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text.encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = _text(value)
    if text.lstrip(_INVISIBLE).startswith(_FORMULA) and not _PLAIN_NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def _text(value: Any) -> str:
    """A value as text. Only lists and objects are JSON: a date of a Parquet input gets no quotes."""
    plain = value if isinstance(value, str) else msgspec.to_builtins(value)
    if isinstance(plain, str):
        return plain
    if isinstance(plain, float) and not isfinite(plain):
        return str(plain)
    return _encode(plain).decode()


def kind_of(value: Any) -> ColumnKind:
    match value:
        case None:
            return "none"
        case bool():
            return "bool"
        case int():
            return "int" if -MAX_INT <= value <= MAX_INT else "text"
        case float():
            return "float"
        case list() if value and {*map(type, value)} <= {float, int}:
            return "floats" if max(map(abs, value)) <= _MAX_EXACT or float in map(type, value) else "text"
    return "text"


def widest(first: ColumnKind, second: ColumnKind) -> ColumnKind:
    """A kind that holds values of both."""
    if first == second or second == "none":
        return first
    if first == "none":
        return second
    return "float" if {first, second} == {"int", "float"} else "text"


class ParquetEncoder:
    """Parquet, one row group at a time."""

    def __init__(self, names: Sequence[str], kinds: Sequence[ColumnKind]) -> None:
        # Takes a third of a second, and few commands need it.
        import pyarrow
        from pyarrow import parquet

        types = {
            "none": pyarrow.string(),
            "bool": pyarrow.bool_(),
            "int": pyarrow.int64(),
            "float": pyarrow.float64(),
            "floats": pyarrow.list_(pyarrow.float64()),
            "vector": pyarrow.list_(pyarrow.float32()),
            "text": pyarrow.string(),
        }
        self._arrow = pyarrow
        self._kinds = kinds
        self._schema = pyarrow.schema([(name, types[kind]) for name, kind in zip(names, kinds, strict=True)])
        self._sink = _Sink()
        self._file = parquet.ParquetWriter(
            pyarrow.PythonFile(self._sink, "w"), self._schema, compression="zstd"
        )
        self._rows: list[Row] = []
        self._size = 0

    def add(self, rows: Sequence[Row], size: int) -> bytes:
        self._rows.extend(rows)
        self._size += size
        if len(self._rows) >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
            self._write_group()
        return self._sink.taken()

    def end(self) -> bytes:
        self._write_group()
        self._file.close()
        return self._sink.taken()

    def _write_group(self) -> None:
        if not self._rows:
            return
        try:
            columns = [
                self._arrow.array([_fitting(value, kind) for value in values], type=field.type)
                for values, kind, field in zip(
                    zip(*self._rows, strict=True), self._kinds, self._schema, strict=True
                )
            ]
        except (self._arrow.ArrowException, OverflowError) as error:
            raise TableError(
                f"a value does not fit into Parquet: {error}; write CSV or JSON Lines"
            ) from error
        self._file.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._size = [], 0


def _fitting(value: Any, kind: ColumnKind) -> Any:
    if value is None:
        return None
    if kind == "text":
        return _text(value)
    if kind != "vector" and widest(kind, kind_of(value)) != kind:
        raise TableError("the lines changed while the table was written; try again")
    return value


class _Sink(io.RawIOBase):
    """A file that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
