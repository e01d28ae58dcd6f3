"""Rows for a table of the user's, which are stored with the results of items."""

import msgspec


class SinkTable(msgspec.Struct, frozen=True):
    """A table in the same database. None: the schema that the connection finds it in."""

    name: str
    schema: str | None = None

    @classmethod
    def named(cls, text: str) -> "SinkTable":
        """`table` or `schema.table`. Both are taken as they are, not folded to lower case."""
        schema, dot, name = text.rpartition(".")
        return cls(name, schema if dot else None)


class SinkRow(msgspec.Struct, frozen=True):
    table: SinkTable
    # The fields of `row`, a JSON object.
    columns: tuple[str, ...]
    row: bytes
