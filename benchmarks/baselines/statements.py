"""The baselines' SQL: one statement per file, run by the same sessions as Batchline's."""

import re
from functools import cache
from importlib.resources import files

from psycopg import sql

from batchline.store.statements import Statement
from benchmarks.inputs import BODY, MODEL
from benchmarks.server import execute, vacuum

_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


@cache
def statement(name: str) -> Statement:
    source = (files("benchmarks.baselines") / f"{name}.sql").read_text(encoding="utf-8")
    return Statement(name, f"/* {name} */\n" + _COMMENT.sub("", source))


@cache
def claim_of(design: str, limit: int) -> Statement:
    """The design's claim with the limit as a constant.

    With a parameter, a generic plan expects a tenth of all rows and reads whole tables.
    """
    template = statement(f"{design}_claim")
    return Statement(template.name, template.text.replace("{limit}", str(limit)))


def set_up(url: str, design: str, lines: int) -> None:
    """Create the design's tables, and a file with `lines` lines in them."""
    execute(url, sql.SQL(statement(f"{design}_schema").text))
    execute(url, sql.SQL(statement("fill").text).format(body=BODY), {"lines": lines, "model": MODEL})
    vacuum(url)
