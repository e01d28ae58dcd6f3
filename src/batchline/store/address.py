"""The address of the tables: a database and a schema in it.

One string names both, `postgresql://user@host/name?schema=batchline`, so every function that takes a database
URL also gets the schema. The schema is part of each statement's text. search_path would not work: it is a
setting of the server connection, which a transaction pooler shares between clients.
"""

import re
from dataclasses import dataclass
from functools import cache
from urllib.parse import unquote, urlsplit

DEFAULT_SCHEMA = "batchline"
_URL = re.compile(r"postgres(ql)?://", re.ASCII)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
# In a connection string such as `host=db dbname=app schema=batches`.
_SCHEMA_WORD = re.compile(r"(?:^|(?<=\s))schema\s*=\s*('(?:[^'\\]|\\.)*'|\S*)\s*")


class InvalidSchema(ValueError):
    """The name of the schema is not valid. The message says what a name may contain."""


@dataclass(frozen=True, slots=True)
class Address:
    conninfo: str
    """The URL or connection string without the schema, as libpq expects it."""
    schema: str = DEFAULT_SCHEMA


@cache
def parse(url: str) -> Address:
    if _URL.match(url):
        conninfo, names = _of_url(url)
    else:
        names = [word.strip("'") for word in _SCHEMA_WORD.findall(url)]
        conninfo = _SCHEMA_WORD.sub("", url).strip()
    if len(names) > 1:
        raise InvalidSchema("the database URL names schema more than once; give it once")
    return Address(conninfo, _checked(names[0]) if names else DEFAULT_SCHEMA)


def _of_url(url: str) -> tuple[str, list[str]]:
    fields = urlsplit(url).query.split("&")
    ours = [field for field in fields if field.partition("=")[0] == "schema"]
    if not ours:
        return url, []
    names = [unquote(field.partition("=")[2]) for field in ours]
    # Do not use urlunsplit here: it would drop the empty host of postgresql:///name.
    base, _, _ = url.partition("?")
    query = "&".join(field for field in fields if field not in ours)
    return f"{base}?{query}" if query else base, names


def in_schema_of(url: str, other: str) -> str:
    """Combine the database of `url` with the schema of `other`, for two URLs of the same server."""
    conninfo, schema = parse(url).conninfo, parse(other).schema
    if not _URL.match(conninfo):
        return f"{conninfo} schema={schema}"
    return f"{conninfo}{'&' if '?' in conninfo else '?'}schema={schema}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or name.startswith("pg_"):
        raise InvalidSchema(
            f"schema={name} is not a valid name: use up to 63 characters of a-z, 0-9 and _;"
            " start with a letter or _, but not with pg_"
        )
    return name
