"""Move the tables of version 0.1.0, which had no separate schema, into the schema.

A table's name alone proves nothing. The migrations of the recorded version run in the new schema, both sets
of definitions are compared, and the old tables move only if all of them match. A database that merely has
tables of the same names, such as a host application's `files`, is not changed.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection

LAST_WITHOUT_SCHEMA = "0010"

_VERSION_TABLE = """
SELECT n.nspname, (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass('alembic_version')
"""
# One row per property of each object, with the object's kind and name first.
_DEFINITIONS = """
SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, c.relname AS name, property.definition
FROM pg_class AS c
CROSS JOIN LATERAL (
    SELECT concat_ws(
        ' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity, pg_get_expr(adbin, adrelid)
    ) AS definition
    FROM pg_attribute
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint
    WHERE conrelid = c.oid AND contype <> 'n'
    UNION ALL
    SELECT pg_get_indexdef(indexrelid, 0, true) FROM pg_index WHERE indrelid = c.oid
    UNION ALL
    SELECT pg_get_viewdef(c.oid) WHERE c.relkind = 'v'
    UNION ALL
    SELECT concat_ws(' ', pg_get_triggerdef(oid, true), 'enabled', tgenabled)
    FROM pg_trigger
    WHERE tgrelid = c.oid AND NOT tgisinternal
) AS property
WHERE c.relnamespace = to_regnamespace(%(schema)s)
  AND c.relkind IN ('r', 'v')
  AND c.relname <> 'alembic_version'
UNION ALL
SELECT
    'FUNCTION',
    p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
    -- It always names the schema, once, in the first line.
    replace(split_part(pg_get_functiondef(p.oid), '(', 1), quote_ident(%(schema)s) || '.', '')
    || substr(pg_get_functiondef(p.oid), strpos(pg_get_functiondef(p.oid), '('))
FROM pg_proc AS p
WHERE p.pronamespace = to_regnamespace(%(schema)s) AND p.prokind = 'f'
UNION ALL
SELECT 'TYPE', t.typname, e.enumlabel
FROM pg_type AS t
JOIN pg_enum AS e ON e.enumtypid = t.oid
WHERE t.typnamespace = to_regnamespace(%(schema)s)
"""

# Kind and name.
Object = tuple[str, str]


class NotOurs(Exception):
    """Tables that look like ours differ from those of our migrations. The message names them."""


class Migrations(Protocol):
    """Migrations of the new schema."""

    def knows(self, revision: str | None) -> bool:
        """Whether the revision is a Batchline version."""
        ...

    def upgrade(self, revision: str) -> None: ...

    def remove(self) -> None:
        """Drop everything that `upgrade` created."""
        ...


@dataclass(frozen=True, slots=True)
class VersionTable:
    """A table alembic_version on the search path of the connection, with the revision in it."""

    schema: str
    revision: str | None


def find_version_table(connection: Connection) -> VersionTable | None:
    """Find alembic_version where version 0.1.0 would find it. Call this before changing the search path."""
    row = connection.exec_driver_sql(_VERSION_TABLE).fetchone()
    if row is None or "version_num" not in row[1]:
        return None
    versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    return VersionTable(row[0], str(versions[0]) if len(versions) == 1 else None)


def relocate(connection: Connection, old: VersionTable, schema: str, migrations: Migrations) -> None:
    """Move the objects of version 0.1.0 from `old.schema` to the empty `schema`. Raises NotOurs."""
    known = migrations.knows(old.revision)
    migrations.upgrade(old.revision if known and old.revision is not None else LAST_WITHOUT_SCHEMA)
    expected = _definitions(connection, schema)
    migrations.remove()
    found = _definitions(connection, old.schema)
    matching = [one for one in expected if found.get(one) == expected[one]]
    different = sorted(name for kind, name in expected if found.get((kind, name)) != expected[kind, name])
    if not any(kind == "TABLE" for kind, _ in matching):
        # The tables belong to another application; ours are created in the new schema.
        return
    if not known or different:
        raise NotOurs(_refusal(old, different, known))
    for kind, name in matching:
        connection.exec_driver_sql(f"ALTER {kind} {_named(old.schema, kind, name)} SET SCHEMA {schema}")
    connection.exec_driver_sql(f'ALTER TABLE "{old.schema}".alembic_version SET SCHEMA {schema}')


def _definitions(connection: Connection, schema: str) -> dict[Object, frozenset[str]]:
    """Read the definitions without the schema's name: on the search path, PostgreSQL leaves it out."""
    path = connection.exec_driver_sql("SELECT current_setting('search_path')").scalar_one()
    _search(connection, f'"{schema}"')
    rows: Any = connection.exec_driver_sql(_DEFINITIONS, {"schema": schema}).fetchall()
    _search(connection, path)
    found: dict[Object, set[str]] = {}
    for kind, name, definition in rows:
        found.setdefault((kind, name), set()).add(definition)
    return {one: frozenset(properties) for one, properties in found.items()}


def _search(connection: Connection, path: str) -> None:
    connection.exec_driver_sql("SELECT set_config('search_path', %(path)s, true)", {"path": path})


def _named(schema: str, kind: str, name: str) -> str:
    # A function's name includes the types of its arguments, so it cannot be quoted as a whole.
    return f'"{schema}".{name}' if kind == "FUNCTION" else f'"{schema}"."{name}"'


def _refusal(old: VersionTable, different: list[str], known: bool) -> str:
    if not known:
        return (
            f"schema {old.schema} contains tables of Batchline 0.1.0, but its alembic_version contains"
            f" {old.revision!r}, which is not a Batchline version; nothing was changed. Correct that row,"
            " or move the tables to the new schema yourself"
        )
    return (
        f"schema {old.schema} contains tables of Batchline 0.1.0, but these differ from version"
        f" {old.revision}: {', '.join(different)}; nothing was changed. Undo the changes to them, or use"
        " another database"
    )
