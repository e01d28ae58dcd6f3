"""Reads the rows of an input file, one by one, in constant memory.

A row is a dict of its columns. A blank line is None, so that the number of a row is always its place in the
file: the line of a text or of JSON Lines, or the record after the header of a table.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from batchline.files.inputs import tables
from batchline.files.inputs.errors import InputRefused, RowFault, StreamFault
from batchline.files.inputs.formats import Format, InputFile, InputLimits
from batchline.files.inputs.streams import open_bytes
from batchline.files.inputs.tables import repeated

Row: TypeAlias = dict[str, Any]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DISPLAYED_COLUMNS = 20
# A name that needs no quotes in a message.
_PLAIN = re.compile(r"[^\s,](?:[^,]*[^\s,])?")
_OTHER_DELIMITERS = {";": "';'", "\t": r"'\t'", "|": "'|'", ",": "','"}

_decode_row = msgspec.json.Decoder(dict[str, Any]).decode


def numbered_rows(file: InputFile, limits: InputLimits) -> Iterator[tuple[int, Row | None]]:
    """The rows of a file with their numbers, from 1 on. Raises InputRefused."""
    number = 0
    try:
        for row in _READERS[file.format](file, limits):
            number += 1
            yield number, row
    except RowFault as fault:
        raise InputRefused(file.name, str(fault), number + 1) from fault
    except StreamFault as fault:
        raise InputRefused(file.name, f"after row {number}: {fault}" if number else str(fault)) from fault
    except MemoryError as error:
        message = f"its rows need more than {limits.memory:,} bytes of memory"
        raise InputRefused(file.name, message, number + 1) from error


def columns_of(row: Row) -> str:
    """The columns of a row for a message."""
    names = [name if _PLAIN.fullmatch(name) else repr(name) for name in row]
    more = f" and {len(names) - _DISPLAYED_COLUMNS} more" if len(names) > _DISPLAYED_COLUMNS else ""
    return ", ".join(names[:_DISPLAYED_COLUMNS]) + more


def example_variable(row: Row) -> str:
    """For an example of a prompt: the column with the longest value, which is hardly an id."""
    name = max(row, key=lambda name: len(str(row[name])), default="column")
    return name if name.isidentifier() else f"row[{json.dumps(name)}]"


def _jsonl(file: InputFile, limits: InputLimits) -> Iterator[Row | None]:
    for line in _lines(file, limits):
        if line.isspace():
            yield None
            continue
        try:
            row = _decode_row(line)
        except msgspec.ValidationError as error:
            if "range" in str(error):
                raise RowFault(f"not valid JSON: {error}") from None
            raise RowFault("a line must be a JSON object with the columns of the row") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RowFault(f"not valid JSON: {error}") from None
        yield row


def _text(file: InputFile, limits: InputLimits) -> Iterator[Row | None]:
    for line in _lines(file, limits):
        yield None if line.isspace() else {"text": _decoded(line).rstrip("\r\n")}


def _csv(file: InputFile, limits: InputLimits) -> Iterator[Row | None]:
    # A quote that is never closed would make the rest of the file one field.
    csv.field_size_limit(limits.max_line_bytes)
    reader = csv.reader(map(_decoded, _lines(file, limits)), delimiter=file.delimiter, strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if header is None:
                header = _checked_header(fields)
                continue
            if len(fields) != len(header):
                if not fields:
                    yield None
                    continue
                raise RowFault(_wrong_width(header, fields))
            yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise RowFault(
            f"not valid {file.format.upper()}: {error} (line {reader.line_num} of the file);"
            " is a quote missing, or is the delimiter another one (--delimiter)?"
        ) from None


def _checked_header(names: list[str]) -> list[str]:
    if not any(names):
        raise StreamFault("the first line must name the columns, but it is empty")
    if (name := repeated(names)) is not None:
        what = f"the column {name!r} twice" if name else "columns without a name"
        raise StreamFault(f"the first line must name the columns, but it has {what}")
    return names


def _wrong_width(header: list[str], fields: list[str]) -> str:
    found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    return (
        f"found {found}, but the header has {len(header)} ({columns_of(dict.fromkeys(header))});"
        " is a quote missing, or is the delimiter another one (--delimiter)?"
    )


def delimiter_hint(row: Row) -> str:
    """What to try if the only column of a CSV looks like several; empty if it does not."""
    if len(row) != 1:
        return ""
    (only,) = row
    for delimiter, displayed in _OTHER_DELIMITERS.items():
        if delimiter in only:
            return f"; all of the header is one column: give --delimiter {displayed}"
    return ""


def _lines(file: InputFile, limits: InputLimits) -> Iterator[bytes]:
    """The lines of a file with their line feeds."""
    with open_bytes(file, limits) as stream:
        line = stream.readline(limits.max_line_bytes + 1).removeprefix(_BYTE_ORDER_MARK)
        while line:
            if len(line) > limits.max_line_bytes:
                raise RowFault(f"the line is longer than {limits.max_line_bytes:,} bytes")
            yield line
            line = stream.readline(limits.max_line_bytes + 1)


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise RowFault(
            f"byte {error.start + 1} of the line is not UTF-8; convert the file,"
            " for example with: iconv -f WINDOWS-1252 -t UTF-8 IN > OUT"
        ) from None


_READERS: dict[Format, Callable[[InputFile, InputLimits], Iterator[Row | None]]] = {
    Format.JSONL: _jsonl,
    Format.CSV: _csv,
    Format.TSV: _csv,
    Format.TEXT: _text,
    Format.PARQUET: tables.parquet_rows,
    Format.ARROW: tables.arrow_rows,
}
