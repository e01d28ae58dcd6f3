"""The rows of an input, to be joined to the output: one per line, in the order of lines."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from batchline.tables.columns import TableError

_read_line = msgspec.json.Decoder(dict[str, Any]).decode
_read_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# The same on all lines, or in the output anyway.
_LEFT_OUT = {"custom_id", "method"}


class InputRows(Protocol):
    """The rows of an input. Numbers ascend; they are those in the ids of the output lines."""

    @property
    def columns(self) -> Sequence[str]: ...

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]: ...


class RequestRows:
    """Request lines of JSONL files, read from the first file to the last as one input."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._columns: list[str] | None = None

    @property
    def columns(self) -> Sequence[str]:
        """The keys of all lines, in the order of their first appearance."""
        if self._columns is None:
            found: dict[str, None] = {}
            for _, line in self._lines():
                found.update(dict.fromkeys(_read_keys(line)))
            self._columns = [name for name in found if name not in _LEFT_OUT]
        return self._columns

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, line in self._lines():
            yield number, _read_line(line)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers. Empty lines have numbers, too."""
        number = 0
        for path in self._paths:
            with path.open("rb") as file:
                for number, line in enumerate(file, number + 1):  # noqa: B020
                    if stripped := line.strip(b" \t\r\n").removeprefix(b"\xef\xbb\xbf"):
                        yield number, stripped


class Joiner:
    """Finds the input row of each output line."""

    def __init__(self, source: InputRows, taken: Sequence[str]) -> None:
        """`taken`: the names of the output's columns."""
        self._keys = list(source.columns)
        self._rows = source.rows()
        self.names = [f"input_{name}" if name in taken else name for name in self._keys]

    def values(self, number: int, custom_id: str) -> list[Any]:
        row = next((row for found, row in self._rows if found >= number), None)
        if row is None or row.get("custom_id", custom_id) != custom_id:
            raise TableError(
                f"the input has changed: its line {number} is not {custom_id!r}; --join needs the same input"
            )
        return [row.get(key) for key in self._keys]
