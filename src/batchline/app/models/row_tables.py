"""Kinds of rows that `run` takes, and what it returns for each: the same kind, with the answers.

pandas, polars and pyarrow are no dependencies. Rows that are theirs can exist only if they are imported.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Rows that are converted at once.
_PIECE = 2_048
_TEXT = "text"


class Answers(list[Any]):
    """Answers in the order of the rows. A row that failed has None, and `errors` says why."""

    def __init__(self, answers: Iterable[Any], errors: Iterable[str | None]) -> None:
        super().__init__(answers)
        self.errors = list(errors)


class RowTable(ABC):
    """Rows of one kind."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self) -> Iterator[Mapping[str, Any]]:
        """All rows, as often as needed. Values may be those of the library that made them."""

    @abstractmethod
    def columns(self) -> Iterable[str]: ...

    @abstractmethod
    def answered(self, name: str, answers: Sequence[Any], errors: Sequence[str | None]) -> Any:
        """The rows with the columns `name` and `name`_error."""


class TextRows(RowTable):
    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        return ({_TEXT: text} for text in self._texts)

    def columns(self) -> Iterable[str]:
        return ()

    def answered(self, name: str, answers: Sequence[Any], errors: Sequence[str | None]) -> Answers:
        return Answers(answers, errors)


class DictRows(RowTable):
    def __init__(self, found: Sequence[Mapping[str, Any]]) -> None:
        self._rows = found

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def columns(self) -> Iterable[str]:
        return {name for row in self._rows for name in row}

    def answered(
        self, name: str, answers: Sequence[Any], errors: Sequence[str | None]
    ) -> list[dict[str, Any]]:
        return [
            {**row, name: answer, f"{name}_error": error}
            for row, answer, error in zip(self._rows, answers, errors, strict=True)
        ]


class PandasRows(RowTable):
    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __len__(self) -> int:
        return len(self._frame)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        names = list(self.columns())
        for start in range(0, len(self), _PIECE):
            piece = self._frame.iloc[start : start + _PIECE]
            for values in piece.itertuples(index=False, name=None):
                yield dict(zip(names, values, strict=True))

    def columns(self) -> Iterable[str]:
        return [str(name) for name in self._frame.columns]

    def answered(self, name: str, answers: Sequence[Any], errors: Sequence[str | None]) -> Any:
        series, index = sys.modules["pandas"].Series, self._frame.index
        added = {name: answers, f"{name}_error": errors}
        return self._frame.assign(
            **{column: series(list(values), index=index, dtype=object) for column, values in added.items()}
        )


class PolarsRows(RowTable):
    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __len__(self) -> int:
        return len(self._frame)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        found: Iterator[Mapping[str, Any]] = self._frame.iter_rows(named=True, buffer_size=_PIECE)
        return found

    def columns(self) -> Iterable[str]:
        return list(self._frame.columns)

    def answered(self, name: str, answers: Sequence[Any], errors: Sequence[str | None]) -> Any:
        polars = sys.modules["polars"]
        kind = polars.String if _are_texts(answers) else None
        return self._frame.with_columns(
            polars.Series(name, answers, dtype=kind),
            polars.Series(f"{name}_error", errors, dtype=polars.String),
        )


class ArrowRows(RowTable):
    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=_PIECE):
            yield from batch.to_pylist()

    def columns(self) -> Iterable[str]:
        return list(self._table.column_names)

    def answered(self, name: str, answers: Sequence[Any], errors: Sequence[str | None]) -> Any:
        arrow = sys.modules["pyarrow"]
        kind = arrow.string() if _are_texts(answers) else None
        table = self._table.append_column(name, arrow.array(answers, type=kind))
        return table.append_column(f"{name}_error", arrow.array(errors, type=arrow.string()))


# By module, name of the class, and what makes a table of it.
_TABLES: dict[tuple[str, str], type[PandasRows] | type[PolarsRows] | type[ArrowRows]] = {
    ("pandas", "DataFrame"): PandasRows,
    ("polars", "DataFrame"): PolarsRows,
    ("pyarrow", "Table"): ArrowRows,
}


def row_table(rows: object) -> RowTable:
    """The rows as a table of their kind. Raises TypeError."""
    for (module, name), kind in _TABLES.items():
        if (loaded := sys.modules.get(module)) is not None and isinstance(rows, getattr(loaded, name, ())):
            return kind(rows)
    if type(rows).__name__ == "LazyFrame":
        raise TypeError("rows is a polars LazyFrame; give rows.collect()")
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise TypeError(
            f"rows must be a list of texts or dicts, or a table of pandas, polars or pyarrow,"
            f" not {type(rows).__name__}"
        )
    return _listed(list(rows))


def _listed(found: list[Any]) -> RowTable:
    if all(isinstance(row, str) for row in found):
        return TextRows(found)
    for index, row in enumerate(found):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise TypeError(
                f"rows[{index}] is of type {type(row).__name__}; rows are all texts, or all dicts whose keys"
                " are texts"
            )
    return DictRows(found)


def _are_texts(answers: Sequence[Any]) -> bool:
    return all(answer is None or isinstance(answer, str) for answer in answers)
