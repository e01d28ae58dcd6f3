"""SQL statements: one per file, named after what they do, in folders by subject under `sql/`."""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import LiteralString

from batchline.store.address import DEFAULT_SCHEMA

_PARAMETER = re.compile(r"%\((\w+)\)[sb]|%%")
# The schema of a table, type or function of ours, or the notification channel.
_SCHEMA = re.compile(r"\bbatchline(?=\.[a-z]|')")
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    """A statement. `text` uses the default schema, as in batchline.lanes."""

    name: str
    text: LiteralString

    def text_in(self, schema: str) -> LiteralString:
        return self.text if schema == DEFAULT_SCHEMA else _in_schema(self, schema)

    def numbered_in(self, schema: str) -> tuple[LiteralString, tuple[str, ...]]:
        """Return the text with $1, $2 … as parameters, and their names in that order.

        This is done once per statement. For texts of more than 4096 characters psycopg would do it at every
        call, which takes 0.13 ms for a claim.
        """
        return self._numbered if schema == DEFAULT_SCHEMA else _numbered(_in_schema(self, schema))

    @cached_property
    def _numbered(self) -> tuple[LiteralString, tuple[str, ...]]:
        return _numbered(self.text)


@cache
def _in_schema(of: Statement, schema: str) -> LiteralString:
    # A schema's name is checked (store/address.py), so it is safe in the text.
    return _SCHEMA.sub(schema, of.text)


@cache
def _numbered(text: LiteralString) -> tuple[LiteralString, tuple[str, ...]]:
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}" if match[1] else "%"

    return _PARAMETER.sub(number, text), tuple(names)


@cache
def statement(name: str) -> Statement:
    """Load `sql/SUBJECT/NAME.sql` without comments, but with its name, for pg_stat_statements."""
    source = _sources()[name].read_text(encoding="utf-8")
    # The files are part of the package, so their text is as trusted as the code.
    return Statement(name, f"/* {name} */\n" + _COMMENT.sub("", source))


def function(name: str, schema: str) -> str:
    """The definition in `functions/NAME.sql`, in a schema: for migrations. A released one is never changed:
    programs of two versions may run side by side. A change is a new file with the next number."""
    source = files("batchline.store") / "functions" / f"{name}.sql"
    return _SCHEMA.sub(schema, source.read_text(encoding="utf-8"))


@cache
def _sources() -> dict[str, Traversable]:
    """Find all SQL files by name. Names are unique across folders."""
    folders = (files("batchline.store") / "sql").iterdir()
    found = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return {file.name.removesuffix(".sql"): file for file in found if file.name.endswith(".sql")}
