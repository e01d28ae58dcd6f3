"""The file as it was read: its tables, each checked key by key, and errors that name the line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchline.settings_file.errors import SettingsError
from batchline.settings_file.keys import REQUIRED, TABLES
from batchline.settings_file.lines import Place, line_of
from batchline.settings_file.values import Reader


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
        shown = f"{name}[{number}]" if name in REQUIRED else name
        values = {}
        for key, value in table.items():
            place = (name, number, key)
            if key not in readers:
                raise self.error(
                    place, f"{shown}.{key}", f"there is no such key; there are {_known(readers)}"
                )
            try:
                values[key] = readers[key](value)
            except ValueError as error:
                raise self.error(place, f"{shown}.{key}", str(error)) from None
        return values

    def check_required(self, name: str, number: int, values: Mapping[str, Any]) -> None:
        for key in REQUIRED[name]:
            if key not in values:
                raise self.error((name, number, None), f"{name}[{number}].{key}", "it is missing")

    def error(self, place: Place, key: str, why: str) -> SettingsError:
        return SettingsError(f"{self.where(place)}: {key}: {why}")

    def where(self, place: Place) -> str:
        line = line_of(self.text, place)
        return self.file if line is None else f"{self.file}, line {line}"


def _known(names: Any) -> str:
    return ", ".join(sorted(names))
