"""The file as it was read: its tables, each checked key by key, and errors that name the line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchline.config.errors import SettingsError
from batchline.config.keys import REQUIRED, TABLES
from batchline.config.lines import Runtime, line_of
from batchline.config.values import Reader


@dataclass(frozen=True, slots=True)
class Source:
    file: str
    text: str
    tables: dict[str, Any]

    def check_tables(self) -> None:
        for name in self.tables:
            if name not in TABLES:
                raise self.error((name, 0, None), name, f"there is no such key; there are {_known(TABLES)}")

    def tables_of(self, name: str) -> Sequence[Any]:
        tables = self.tables.get(name, [])
        if not isinstance(tables, list):
            raise self.error((name, 0, None), name, f"write it as [[{name}]], once for each")
        return tables

    def table(self, name: str, number: int, table: Any, readers: dict[str, Reader]) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.error((name, number, None), name, "it must be a table")
        displayed = f"{name}[{number}]" if name in REQUIRED else name
        values = {}
        for key, value in table.items():
            position = (name, number, key)
            if key not in readers:
                raise self.error(
                    position, f"{displayed}.{key}", f"there is no such key; there are {_known(readers)}"
                )
            try:
                values[key] = readers[key](value)
            except ValueError as error:
                raise self.error(position, f"{displayed}.{key}", str(error)) from None
        return values

    def check_required(self, name: str, number: int, values: Mapping[str, Any]) -> None:
        for key in REQUIRED[name]:
            if key not in values:
                raise self.error((name, number, None), f"{name}[{number}].{key}", "it is missing")

    def error(self, position: Runtime, key: str, why: str) -> SettingsError:
        return SettingsError(f"{self.where(position)}: {key}: {why}")

    def where(self, position: Runtime) -> str:
        line = line_of(self.text, position)
        return self.file if line is None else f"{self.file}, line {line}"


def _known(names: Any) -> str:
    return ", ".join(sorted(names))
