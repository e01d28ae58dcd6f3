"""The rows of an input, to be joined to the output: one per line, in the order of lines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from batchline.tables.columns import TableError


class InputRows(Protocol):
    """The rows of an input. Numbers ascend; they are those in the ids of the output lines."""

    @property
    def columns(self) -> Sequence[str]:
        """Those to add to the output."""
        ...

    @property
    def id_column(self) -> str | None:
        """The column with the custom_id, if there is one."""
        ...

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]: ...

    def check_unchanged(self) -> None:
        """Raises TableError if these are not the rows that were sent."""
        ...


class Joiner:
    """Finds the input row of each output line."""

    def __init__(self, source: InputRows, taken: Sequence[str]) -> None:
        """`taken`: the names of the output's columns."""
        self._keys = list(source.columns)
        self._id_column = source.id_column
        self._rows = source.rows()
        self.names = _renamed(self._keys, taken)

    def values(self, number: int, custom_id: str) -> list[Any]:
        found, row = next(((found, row) for found, row in self._rows if found >= number), (0, {}))
        known = custom_id if self._id_column is None else str(row.get(self._id_column, custom_id))
        if (found, known) != (number, custom_id):
            raise TableError(
                f"the input has changed: its line {number} is not {custom_id!r}; --join needs the same input"
            )
        return [row.get(key) for key in self._keys]


def _renamed(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names of the input's columns in the table: each is there once."""
    used, found = {*taken, *names}, []
    for name in names:
        if name in taken:
            name = f"input_{name}"
            while name in used:
                name = f"input_{name}"
            used.add(name)
        found.append(name)
    return found
