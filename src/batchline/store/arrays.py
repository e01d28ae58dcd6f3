"""Columns of verdicts as PostgreSQL arrays in binary form, each with one fixed type.

psycopg would check every element to find the narrowest type that fits, and so prepare a new statement for
each mix of types. It would also require `str` for text that we already hold as UTF-8 bytes.
"""

import struct
from collections.abc import Sequence
from typing import Any

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class _Array:
    """Values that are sent to the server as one array."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


class Int2Array(_Array):
    """smallint[], may contain None."""


class Int4Array(_Array):
    """integer[], no None."""


class Int8Array(_Array):
    """bigint[], no None."""


class Float4Array(_Array):
    """real[], no None."""


class Float8Array(_Array):
    """float8[], no None."""


class TextArray(_Array):
    """text[] of UTF-8 bytes, may contain None."""


class MultirangeArray(_Array):
    """int4multirange[], each element given as its numbers in any order."""


def _fixed(values: Sequence[Any], oid: int, width: int, code: str) -> bytes:
    cells: list[Any] = [width] * (2 * len(values))
    cells[1::2] = values
    return _HEADER.pack(1, 0, oid, len(values), 1) + struct.pack(f">{('i' + code) * len(values)}", *cells)


def _varied(cells: Sequence[bytes | None], oid: int) -> bytes:
    parts = [_HEADER.pack(1, 1, oid, len(cells), 1)]
    for cell in cells:
        if cell is None:
            parts.append(_NULL)
        else:
            parts.append(_LENGTH.pack(len(cell)))
            parts.append(cell)
    return b"".join(parts)


_COUNT = struct.Struct(">i")
# A half-open range: its length, its flags, and both bounds with their lengths.
_RANGE = struct.Struct(">iBiiii")
_LOWER_INCLUDED = 2


def _multirange(numbers: Sequence[int]) -> bytes:
    """Encode numbers with as few ranges as possible."""
    ordered = sorted(numbers)
    parts = []
    first = last = ordered[0]
    for number in ordered:
        if number > last + 1:
            parts.append(_RANGE.pack(17, _LOWER_INCLUDED, 4, first, 4, last + 1))
            first = number
        last = number
    parts.append(_RANGE.pack(17, _LOWER_INCLUDED, 4, first, 4, last + 1))
    return _COUNT.pack(len(parts)) + b"".join(parts)


class _ArrayDumper(Dumper):
    format = Format.BINARY


class _Int2Dumper(_ArrayDumper):
    oid = 1005

    def dump(self, obj: Int2Array) -> Buffer:
        return _varied([None if v is None else struct.pack(">h", v) for v in obj.values], 21)


class _Int4Dumper(_ArrayDumper):
    oid = 1007

    def dump(self, obj: Int4Array) -> Buffer:
        return _fixed(obj.values, 23, 4, "i")


class _Int8Dumper(_ArrayDumper):
    oid = 1016

    def dump(self, obj: Int8Array) -> Buffer:
        return _fixed(obj.values, 20, 8, "q")


class _Float4Dumper(_ArrayDumper):
    oid = 1021

    def dump(self, obj: Float4Array) -> Buffer:
        return _fixed(obj.values, 700, 4, "f")


class _Float8Dumper(_ArrayDumper):
    oid = 1022

    def dump(self, obj: Float8Array) -> Buffer:
        return _fixed(obj.values, 701, 8, "d")


class _TextDumper(_ArrayDumper):
    oid = 1009

    def dump(self, obj: TextArray) -> Buffer:
        return _varied(obj.values, 25)


class _MultirangeDumper(_ArrayDumper):
    oid = 6150

    def dump(self, obj: MultirangeArray) -> Buffer:
        return _varied([_multirange(numbers) for numbers in obj.values], 4451)


def register(context: AdaptContext) -> None:
    adapters = context.adapters
    assert adapters is not None
    adapters.register_dumper(Int2Array, _Int2Dumper)
    adapters.register_dumper(Int4Array, _Int4Dumper)
    adapters.register_dumper(Int8Array, _Int8Dumper)
    adapters.register_dumper(Float4Array, _Float4Dumper)
    adapters.register_dumper(Float8Array, _Float8Dumper)
    adapters.register_dumper(TextArray, _TextDumper)
    adapters.register_dumper(MultirangeArray, _MultirangeDumper)
