"""Makes the blocks of a table file from a batch's lines.

For Parquet, a column whose values are not known beforehand gets the widest kind of all its values. That takes
a second pass over the lines, which can therefore be opened again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from batchline.tables.columns import (
    FIELD_KINDS,
    OutputColumn,
    SelectFaults,
    decode_record,
    default_columns,
    reader,
)
from batchline.tables.encoding import (
    ColumnKind,
    CsvEncoder,
    Encoder,
    JsonlEncoder,
    ParquetEncoder,
    Row,
    kind_of,
    widest,
)
from batchline.tables.formats import OutputFormat, compressor
from batchline.tables.joining import InputRows, Joiner
from batchline.tables.merging import NumberedLines, merged

Blocks = AsyncGenerator[bytes, None]


class TableLines(msgspec.Struct, frozen=True):
    """Opens the streams of lines that a table has, and one of completed lines, to look at the first."""

    opened: tuple[Callable[[], Blocks], ...]
    completed: Callable[[], Blocks]

    async def merged(self) -> AsyncGenerator[NumberedLines, None]:
        streams = [open_stream() for open_stream in self.opened]
        try:
            async for some in merged(*streams):
                yield some
        finally:
            for stream in streams:
                await stream.aclose()

    async def first_completed(self) -> bytes | None:
        rest = b""
        async with aclosing(self.completed()) as blocks:
            async for block in blocks:
                line, newline, _ = (rest := rest + block).partition(b"\n")
                if newline:
                    return line
        return rest or None


class TableSpec(msgspec.Struct, frozen=True):
    """What the user wants: a format, columns (None: those for the first answer), and the input's columns."""

    format: OutputFormat
    columns: tuple[OutputColumn, ...] | None = None
    join: InputRows | None = None


class TableWriter:
    """Makes the blocks of one table; `rows` counts its rows, `faults` values that could not be computed."""

    def __init__(self, spec: TableSpec, lines: TableLines) -> None:
        self._spec = spec
        self._lines = lines
        self.rows = 0
        self.faults = SelectFaults()

    async def blocks(self) -> Blocks:
        await self._check_input()
        columns = self._spec.columns or default_columns(await self._first())
        encoder = await self._encoder(columns)
        packed = compressor(self._spec.format.compression)
        rows_of = await asyncio.to_thread(_RowReader, columns, self._spec.join)
        self.faults = rows_of.faults

        def encoded(some: NumberedLines) -> bytes:
            rows = rows_of.read(some)
            return packed.compress(encoder.add(rows, sum(map(len, some.lines))))

        async with aclosing(self._lines.merged()) as lines:
            async for some in lines:
                # Ctrl-C and other tasks need the event loop.
                block = await asyncio.to_thread(encoded, some)
                self.rows += len(some.lines)
                if block:
                    yield block
        # Before the end: without it, a file does not get its name.
        await self._check_input()
        yield await asyncio.to_thread(lambda: packed.compress(encoder.end()) + packed.flush())

    async def _check_input(self) -> None:
        if self._spec.join is not None:
            await asyncio.to_thread(self._spec.join.check_unchanged)

    async def _first(self) -> Any:
        first = await self._lines.first_completed()
        return None if first is None else decode_record(first)

    async def _encoder(self, columns: Sequence[OutputColumn]) -> Encoder:
        names = (await asyncio.to_thread(_RowReader, columns, self._spec.join)).names
        match self._spec.format.kind:
            case "jsonl":
                return JsonlEncoder(names)
            case "csv":
                return CsvEncoder(names)
            case "parquet":
                return await asyncio.to_thread(ParquetEncoder, names, await self._kinds(columns))

    async def _kinds(self, columns: Sequence[OutputColumn]) -> list[ColumnKind]:
        known: list[Any] = [None if column.expression else FIELD_KINDS[column.name] for column in columns]
        if self._spec.join is None and None not in known:
            return known
        rows_of = await asyncio.to_thread(_RowReader, columns, self._spec.join)
        found: list[ColumnKind] = ["none"] * len(rows_of.names)
        async with aclosing(self._lines.merged()) as lines:
            async for some in lines:
                found = await asyncio.to_thread(_widened, found, rows_of, some)
        joined = len(rows_of.names) - len(columns)
        return found[:joined] + [sure or seen for sure, seen in zip(known, found[joined:], strict=True)]


class _RowReader:
    """Reads the rows of a table: the input's columns, then the output's."""

    def __init__(self, columns: Sequence[OutputColumn], join: InputRows | None) -> None:
        own = [column.name for column in columns]
        self.faults = SelectFaults()
        self._read = reader(columns, self.faults)
        self._joiner = None if join is None else Joiner(join, own)
        self.names = [*(self._joiner.names if self._joiner else ()), *own]

    def read(self, some: NumberedLines) -> list[Row]:
        return [self._row(number, line) for number, line in zip(some.numbers, some.lines, strict=True)]

    def _row(self, number: int, line: bytes) -> Row:
        record = decode_record(line)
        values = self._read(record)
        return values if self._joiner is None else self._joiner.values(number, record.custom_id) + values


def _widened(found: list[ColumnKind], rows_of: _RowReader, some: NumberedLines) -> list[ColumnKind]:
    for row in rows_of.read(some):
        found = list(map(widest, found, map(kind_of, row)))
    return found
