"""Counts statements in the log of PostgreSQL: how often workers poll, and how much they claim at once."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SETTINGS = {"log_statement": "all", "log_line_prefix": "<%a> "}
# Statements of Batchline begin with a comment that names them.
_STATEMENT = re.compile(
    r"^<batchline[^>]*> LOG: +(?:statement|execute [^:]*): (?:/\* (\w+) \*/)?", re.MULTILINE
)


@dataclass(slots=True)
class StatementLog:
    path: Path
    _position: int = 0

    def since_last_time(self) -> "Counter[str]":
        with self.path.open("rb") as stream:
            stream.seek(self._position)
            text = stream.read()
            self._position = stream.tell()
        return Counter(name or "other" for name in _STATEMENT.findall(text.decode(errors="replace")))


def claims(statements: "Counter[str]") -> int:
    return sum(count for name, count in statements.items() if name.startswith("claim"))
