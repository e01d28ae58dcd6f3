"""Finds out what an input file is.

The name decides the format, and the content decides what the name leaves open. Compression is recognized by
the content. JSON Lines are requests already if the first line has the fields of a request.
"""

import io
from pathlib import Path

import msgspec

from batchline.files.inputs.errors import InputRefused, StreamFault
from batchline.files.inputs.formats import (
    Compression,
    Format,
    InputFile,
    InputLimits,
    compression_of,
    format_of,
)
from batchline.files.inputs.streams import open_bytes

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMPRESSED = {b"\x1f\x8b": Compression.GZIP, b"\x28\xb5\x2f\xfd": Compression.ZSTD}
_TABLES = {b"PAR1": Format.PARQUET, b"ARROW1": Format.ARROW}
_ZIP = b"PK\x03\x04"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_ENVELOPE = {"custom_id", "method", "url", "body"}


def detect(
    name: str,
    path: Path,
    limits: InputLimits,
    *,
    requested: Format | None = None,
    delimiter: str | None = None,
    rows_expected: bool = False,
) -> InputFile:
    """Find out what the file is. `rows_expected`: the user gave options that only rows have.

    Raises InputRefused, or OSError if the file cannot be read.
    """
    with path.open("rb") as raw:
        head = raw.read(8)
    compression = next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), None)
    if (named := compression_of(name)) not in (Compression.NONE, compression):
        raise InputRefused(name, f"its name says {named}, but its content is not {named}; rename it")
    format = requested or format_of(name)
    format = format or next((kind for magic, kind in _TABLES.items() if head.startswith(magic)), None)
    if format is not None and format.is_table:
        if compression is not None:
            what = f"{format.capitalize()} inside {compression} cannot be read"
            raise InputRefused(name, f"{what}; decompress it first")
        return InputFile(name, str(path), format)
    if head.startswith(_UTF_16):
        raise InputRefused(name, "it is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT")
    delimiter = delimiter or ("\t" if format is Format.TSV else ",")
    file = InputFile(name, str(path), format or Format.JSONL, compression or Compression.NONE, delimiter)
    if format in (Format.CSV, Format.TSV):
        return file
    try:
        with open_bytes(file, limits) as stream:
            first = _first_line(stream)
    except StreamFault as fault:
        raise InputRefused(name, str(fault)) from fault
    if file.format is Format.JSONL and first.startswith(b"["):
        raise InputRefused(
            name,
            "it begins with [, so it is a JSON array; write one object per line: jq -c '.[]' IN > OUT.jsonl",
        )
    if first.startswith(_ZIP):
        raise InputRefused(name, "it is an Excel workbook or another ZIP file; save the table as CSV first")
    if format is None and first and not first.startswith(b"{"):
        raise InputRefused(
            name,
            f"neither its name nor its content says what it is; give --input-format {'|'.join(Format)}",
        )
    if _is_envelope(first, file.format, rows_expected):
        return msgspec.structs.replace(file, format=Format.JSONL, is_envelope=True)
    return file


def _first_line(stream: io.BufferedReader) -> bytes:
    """The first line that is not blank; of a very long one, its beginning."""
    while line := stream.readline(2**24):
        if stripped := line.removeprefix(_BYTE_ORDER_MARK).strip():
            return stripped
    return b""


def _is_envelope(first: bytes, format: Format, rows_expected: bool) -> bool:
    """Whether a line is meant to be a request, even if it is not a valid one. Rows may have columns called
    url and body, too, as those of scraped pages have."""
    try:
        fields = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        # Not JSON. As requests, the lines get the usual errors.
        return format is Format.JSONL and not rows_expected
    known = fields.keys() & _ENVELOPE
    has_body = bytes(fields.get("body", b"")).startswith(b"{")
    if rows_expected:
        return has_body and {"custom_id", "url"} <= known
    return len(known) >= 2 and (has_body or "custom_id" in known)
