"""Rows as lines of JSON, which templates read."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from batchline.operations.errors import InvalidItem

# A block has about so many bytes.
_BLOCK = 2**20


class InvalidRow(InvalidItem):
    """A row that cannot become a request. `index` is its position, from 0."""

    def __str__(self) -> str:
        return self.message if self.index is None else f"rows[{self.index}]: {self.message}"


def encoded_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Blocks of lines. Raises InvalidRow."""
    encoder = msgspec.json.Encoder(enc_hook=_plain)
    lines: list[bytes] = []
    size = 0
    for index, row in enumerate(rows):
        try:
            lines.append(encoder.encode(row) + b"\n")
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidRow(index, f"cannot be written as JSON: {error}") from error
        size += len(lines[-1])
        if size >= _BLOCK:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)


def _plain(value: Any) -> Any:
    """Values of pandas and numpy: their own kinds of numbers, times and missing values."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    for method in ("tolist", "isoformat"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")
