"""Input files of all formats with the same rows, and their rows and requests."""

import asyncio
import csv
import gzip
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import feather, parquet

from batchline.files.inputs.formats import Format, InputLimits
from batchline.files.inputs.input_set import InputOptions, InputSet, find_inputs
from batchline.files.inputs.rendering import RowTemplate
from batchline.files.inputs.spool import Spool

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROWS = [
    {"id": "a", "language": "German", "text": 'Hello, "you"'},
    {"id": "b", "language": "French", "text": "two\nlines; ünïcode \u2028 and {{ braces }}"},
    {"id": "c", "language": "Polish", "text": ""},
]
TRANSLATE = RowTemplate(model="m", prompt="To {{ language }}: {{ text }}", id_column="id")
_BATCH = 5_000
FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow", "arrows")


def encoded(suffix: str, rows: Sequence[dict[str, Any]] = ROWS) -> bytes:
    """The rows in the format of a suffix, such as csv.gz."""
    format, _, compression = suffix.partition(".")
    content = _encoded(format, rows)
    match compression:
        case "gz":
            return gzip.compress(content, 1)
        case "zst":
            return zstd.compress(content)
    return content


def _encoded(format: str, rows: Sequence[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    match format:
        case "csv" | "tsv":
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if format == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
            return text.getvalue().encode()
        case "jsonl":
            return "".join(json.dumps(row) + "\n" for row in rows).encode()
        case "parquet":
            parquet.write_table(pyarrow.Table.from_pylist(list(rows)), out, row_group_size=_BATCH)
        case "arrow":
            feather.write_feather(pyarrow.Table.from_pylist(list(rows)), out, chunksize=_BATCH)
        case "arrows":
            table = pyarrow.Table.from_pylist(list(rows))
            with pyarrow.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)
    return out.getvalue()


def inputs_at(
    *paths: Path | str,
    template: RowTemplate | None = None,
    format: Format | None = None,
    delimiter: str | None = None,
    limits: InputLimits | None = None,
    spool: Spool | None = None,
) -> InputSet:
    """The inputs, as commands find them."""
    options = InputOptions(template, format, delimiter, limits or InputLimits())
    return find_inputs([str(path) for path in paths], options, spool or Spool(_no_folder))


def rendered_lines(inputs: InputSet) -> list[dict[str, Any]]:
    """The request lines that reach the ingest."""
    return asyncio.run(_rendered_lines(inputs))


async def _rendered_lines(inputs: InputSet) -> list[dict[str, Any]]:
    content = b""
    async with inputs.sources() as sources:
        for source in sources:
            assert not isinstance(source.content, Path)
            async for block in source.content:  # type: ignore[union-attr]
                content += block
    return [json.loads(line) for line in content.split(b"\n") if line]


def _no_folder() -> Path:
    raise AssertionError("no copy is needed")
