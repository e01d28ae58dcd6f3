"""The old tables of an adoption: recognized by their columns, and read through views of one shape.

Two kinds of databases have one row per request: the design that Batchline's began from, with `files`,
`request_templates`, `batches` and `requests`, and the public project fusillade, whose schema grew out of it
and has more columns, a table of daemons and an archive. The views `source_…` in Batchline's schema show both
in the same way, so that every statement of an adoption is written once. A column that the old tables lack is
NULL, or its usual default.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import sql

from batchline.store.errors import StoreUnusable
from batchline.store.session import StoreConnection

_COLUMNS = b"""
SELECT c.relname, array_agg(a.attname::text)
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = to_regnamespace(quote_ident(%s)) AND c.relkind IN ('r', 'p')
GROUP BY c.relname
"""

_REQUIRED = {
    "files": {"id"},
    "request_templates": {"id", "file_id", "model", "body"},
    "batches": {"id", "file_id"},
    "requests": {"id", "batch_id", "template_id", "state"},
}
FILES, TEMPLATES, BATCHES, REQUESTS, ARCHIVE, DAEMONS = (
    *_REQUIRED,
    "batch_requests_archive",
    "daemons",
)

# For each view: its columns, and where each comes from. The first of the old columns that exists is used; the
# last entry is the expression for none of them.
_FILE = {
    "id": ("id", "NULL::uuid"),
    "name": ("name", "filename", "'adopted.jsonl'"),
    "size": ("size_bytes", "bytes", "0"),
    "purpose": ("purpose", "'batch'"),
    "created_at": ("created_at", "now()"),
    "expires_at": ("expires_at", "NULL::timestamptz"),
    "deleted_at": ("deleted_at", "NULL::timestamptz"),
    "owner": ("uploaded_by", "created_by", "NULL::text"),
}
_TEMPLATE = {
    "id": ("id", "NULL::uuid"),
    "file_id": ("file_id", "NULL::uuid"),
    "line_number": ("line_number", "0"),
    "custom_id": ("custom_id", "NULL::text"),
    "method": ("method", "'POST'"),
    "url": ("path", "url", "'/v1/chat/completions'"),
    "model": ("model", "NULL::text"),
    "body": ("body", "NULL::text"),
    "created_at": ("created_at", "NULL::timestamptz"),
    "updated_at": ("updated_at", "NULL::timestamptz"),
}
_BATCH = {
    "id": ("id", "NULL::uuid"),
    "file_id": ("file_id", "NULL::uuid"),
    "endpoint": ("endpoint", "NULL::text"),
    "completion_window": ("completion_window", "'24h'"),
    "metadata": ("metadata", "NULL::jsonb"),
    "owner": ("created_by", "NULL::text"),
    "output_file_id": ("output_file_id", "NULL::uuid"),
    "created_at": ("created_at", "now()"),
    "expires_at": ("expires_at", "NULL::timestamptz"),
    "cancelling_at": ("cancelling_at", "NULL::timestamptz"),
    "cancelled_at": ("cancelled_at", "NULL::timestamptz"),
    "deleted_at": ("deleted_at", "NULL::timestamptz"),
}
_REQUEST = {
    # Where the row is, so that the table can be read in pieces without any index.
    "position": ("ctid", "ctid"),
    # Which transaction wrote it, so that the last pass looks only at what has changed.
    "written_by": ("xmin", "xmin"),
    "id": ("id", "NULL::uuid"),
    "batch_id": ("batch_id", "NULL::uuid"),
    "template_id": ("template_id", "NULL::uuid"),
    "state": ("state", "NULL::text"),
    "retry_attempt": ("retry_attempt", "0"),
    "not_before": ("not_before", "NULL::timestamptz"),
    "daemon_id": ("daemon_id", "NULL::uuid"),
    "claimed_at": ("claimed_at", "NULL::timestamptz"),
    "started_at": ("started_at", "NULL::timestamptz"),
    "response_status": ("response_status", "NULL::smallint"),
    "response_body": ("response_body", "NULL::text"),
    "error": ("error", "NULL::text"),
    "completed_at": ("completed_at", "NULL::timestamptz"),
    "failed_at": ("failed_at", "NULL::timestamptz"),
    "canceled_at": ("canceled_at", "NULL::timestamptz"),
}
_DAEMON = {
    "id": ("id", "NULL::uuid"),
    "status": ("status", "'running'"),
    "last_heartbeat": ("last_heartbeat", "NULL::timestamptz"),
}
_NO_DAEMONS = "SELECT NULL::uuid AS id, NULL::text AS status, NULL::timestamptz AS last_heartbeat WHERE false"
# Times of an earlier end may be left in a request that was retried. Some old tables have only completed_at.
_ENDED = """CASE state
    WHEN 'completed' THEN completed_at
    WHEN 'failed' THEN coalesce(failed_at, completed_at)
    WHEN 'canceled' THEN coalesce(canceled_at, completed_at)
END"""
# What a rollback writes to a request: (column, expression over `written`). Columns that do not exist are left
# out. Who claimed an item is unknown; the constraints of the old tables want nothing of that.
_WRITTEN = (
    ("state", "written.state"),
    ("retry_attempt", "written.retry_attempt"),
    ("not_before", "written.not_before"),
    ("daemon_id", "NULL"),
    ("claimed_at", "NULL"),
    ("started_at", "NULL"),
    ("response_status", "written.response_status"),
    ("response_body", "written.response_body"),
    ("response_size", "coalesce(octet_length(written.response_body), 0)"),
    ("error", "written.error"),
    ("completed_at", "CASE written.state WHEN 'completed' THEN written.at END"),
    ("failed_at", "CASE written.state WHEN 'failed' THEN written.at END"),
    ("canceled_at", "CASE written.state WHEN 'canceled' THEN written.at END"),
    ("updated_at", "now()"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Old tables in one schema, with the columns that they have."""

    schema: str
    tables: Mapping[str, frozenset[str]]

    @property
    def shape(self) -> str:
        fusillade = DAEMONS in self.tables or "routed_model" in self.tables[REQUESTS]
        return "fusillade" if fusillade else "eager"

    @property
    def has_daemons(self) -> bool:
        return {"id", "last_heartbeat"} <= self.tables.get(DAEMONS, frozenset())

    @property
    def old_tables(self) -> list[str]:
        """All of them, in an order in which they can be dropped together."""
        return [name for name in (ARCHIVE, REQUESTS, BATCHES, TEMPLATES, FILES) if name in self.tables]

    def table(self, name: str) -> sql.Composable:
        return sql.Identifier(self.schema, name)

    def views(self, schema: str) -> list[sql.Composed]:
        """The statements that create the views in Batchline's schema."""
        requests = [self._select(REQUESTS, _REQUEST)]
        if ARCHIVE in self.tables:
            requests.append(self._select(ARCHIVE, _REQUEST))
        daemons = self._select(DAEMONS, _DAEMON) if self.has_daemons else sql.SQL(_NO_DAEMONS)
        selects = {
            "source_files": self._select(FILES, _FILE),
            "source_templates": self._select(TEMPLATES, _TEMPLATE),
            "source_batches": self._select(BATCHES, _BATCH),
            "source_requests": sql.SQL("SELECT *, {} AS ended_at FROM ({}) AS request").format(
                sql.SQL(_ENDED), sql.SQL(" UNION ALL ").join(requests)
            ),
            "source_daemons": daemons,
        }
        return [
            sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(sql.Identifier(schema, name), select)
            for name, select in selects.items()
        ]

    def assignments(self) -> sql.Composed:
        """The SET list that writes a result, or pending, back to a request."""
        found = self.tables[REQUESTS]
        known = {name: value for name, value in _WRITTEN if name in found}
        if "completed_at" in found and "failed_at" not in found:
            known["completed_at"] = "CASE WHEN written.state IN ('completed', 'failed') THEN written.at END"
        return sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.SQL(value)) for name, value in known.items()
        )

    def pending(self) -> tuple[sql.Composed, sql.Composed]:
        """The columns of a new pending request, and their expressions over `missing`."""
        known = [
            name
            for name in ("id", "batch_id", "template_id", "state", "custom_id", "retry_attempt", "model")
            if name in self.tables[REQUESTS]
        ]
        return (
            sql.SQL(", ").join(map(sql.Identifier, known)),
            sql.SQL(", ").join(sql.SQL("missing.{}").format(sql.Identifier(name)) for name in known),
        )

    def _select(self, table: str, columns: Mapping[str, tuple[str, ...]]) -> sql.Composed:
        found = self.tables[table]
        chosen = [
            (next((sql.Identifier(name) for name in names[:-1] if name in found), sql.SQL(names[-1])), column)
            for column, names in columns.items()
        ]
        select = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(expression, sql.Identifier(column)) for expression, column in chosen
        )
        query = sql.SQL("SELECT {} FROM {}").format(select, self.table(table))
        # A request that lost a race against its copy, in old versions of fusillade: the copy counts.
        return query + sql.SQL(" WHERE state <> 'superseded'") if "state" in columns else query


async def detect(connection: StoreConnection, schema: str) -> Source:
    """Find the old tables in a schema. Raises StoreUnusable if they are not there or lack a column."""
    rows = await (await connection.execute(_COLUMNS, (schema,))).fetchall()
    tables = {name: frozenset(columns) for name, columns in rows}
    missing = [
        f"table {name} is missing" if name not in tables else f"{name} has no column {column}"
        for name, columns in _REQUIRED.items()
        for column in sorted(columns - tables.get(name, frozenset()))
        if name in tables or column == min(columns)
    ]
    if missing:
        raise StoreUnusable(
            f"schema {schema} has no tables that Batchline can adopt: {'; '.join(missing)};"
            " name their schema with --source"
        )
    return Source(schema, {name: tables[name] for name in (*_REQUIRED, ARCHIVE, DAEMONS) if name in tables})
