"""SQL statements, one a file under `sql/`, named after what they do."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import LiteralString

_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    text: LiteralString


@cache
def statement(name: str) -> Statement:
    """The statement in `sql/NAME.sql`, without its comments; its name stays, for pg_stat_statements."""
    source = (files("batchline.store") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    # The files are part of the package, so their text is as trusted as the code.
    return Statement(name, f"/* {name} */\n" + _COMMENT.sub("", source))
