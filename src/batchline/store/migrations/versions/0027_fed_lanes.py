"""Lanes that are fed while their batch runs: stages of Python operations, and batches that accept items.

The cursor of a fed lane is its total, and its lines wait in free spans; `counters.added` is what the batch
has got since it was created. Spans count how many workers were lost that held them.
"""

import re

from alembic import op

from batchline.store.errors import StoreUnusable
from batchline.store.statements import function

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

# In the order in which they use each other.
CHANGED = (
    *(
        "freeze_v1",
        "add_counts_v1",
        "freeze_finished_v1",
        "record_verdicts_v1",
        "conclude_now_v1",
        "settle_v1",
    ),
    *("claim_returned_v1", "claim_v1"),
)
ADDED = ("emit_v1", "collect_v1", "append_items_v1", "release_items_v1")

COLUMNS = """
ALTER TABLE lanes ADD COLUMN fed boolean NOT NULL DEFAULT false;
ALTER TABLE batches
    -- More items can be added. It does not end before it is released.
    ADD COLUMN accepting boolean NOT NULL DEFAULT false,
    -- Of lines that were added while it ran: its file is charged for them when it ends.
    ADD COLUMN added_bytes bigint NOT NULL DEFAULT 0,
    -- How many stages have begun that collect the results of others.
    ADD COLUMN collected smallint NOT NULL DEFAULT 0,
    -- One that accepts items begins without any.
    DROP CONSTRAINT batches_total_check,
    ADD CONSTRAINT batches_total_check CHECK (total >= 0);
ALTER TABLE counters
    ADD COLUMN added integer NOT NULL DEFAULT 0,
    ADD COLUMN added_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE spans ADD COLUMN losses smallint NOT NULL DEFAULT 0;
-- With the lane: whether a stage has any must not take longer the more another stage has.
DROP INDEX spans_batch;
CREATE INDEX spans_batch ON spans (batch_id, lane_id);
-- Keys of items that may be submitted once. They are deleted with the lines of their file.
CREATE TABLE item_keys (
    tenant    text NOT NULL,
    operation text NOT NULL,
    key       text NOT NULL,
    file_no   bigint NOT NULL,
    PRIMARY KEY (tenant, operation, key)
);
CREATE INDEX item_keys_file ON item_keys (file_no, key);
"""
# Taken as it is, with one more table at its end.
TENANT_DATA = "SELECT rtrim(pg_get_viewdef('tenant_data'::regclass), ';')"
UNION = "UNION ALL"
DROPPED = """
DROP TABLE item_keys;
DROP INDEX spans_batch;
CREATE INDEX spans_batch ON spans (batch_id);
ALTER TABLE spans DROP COLUMN losses;
ALTER TABLE counters DROP COLUMN added, DROP COLUMN added_bytes;
ALTER TABLE batches DROP COLUMN accepting, DROP COLUMN added_bytes, DROP COLUMN collected;
ALTER TABLE lanes DROP COLUMN fed;
"""
# Batches that ended without an item stay.
TOTAL = """
ALTER TABLE batches
    DROP CONSTRAINT batches_total_check, ADD CONSTRAINT batches_total_check
    CHECK (total > 0 OR failed_at IS NOT NULL) {validity}
"""
EMPTY = "SELECT count(*) FROM batches WHERE total = 0 AND failed_at IS NULL"

# The views are taken as they are: what other migrations have added to them stays. From version 16 on,
# PostgreSQL leaves the table's name out where it is the only one.
VIEW = "SELECT pg_get_viewdef('{name}'::regclass)"
VIEWS = ("current_lanes", "current_batches", "provider_items", "requests")
CURSOR = "SELECT c.next FROM cursors c WHERE c.lane_id = n.id ORDER BY c.next DESC LIMIT 1"
LANE_TOTAL = f"CASE WHEN n.fed THEN COALESCE(({CURSOR}), n.next) ELSE n.total END AS total"
BATCH_TOTAL = "b.total + COALESCE(c.added, 0) AS total"
OF_BATCH = """,
    b.accepting,
    COALESCE(c.added_bytes, 0) AS added_bytes
   FROM"""
OF_COUNTERS = "SELECT counters.added, counters.added_bytes, counters.cost"

# A batch that accepts items cannot go back: nothing of the older version would release it. Nor one that gets
# lines while it runs, before it has ended: the older version would not add them to its file.
OPEN = "SELECT count(*) FROM batches WHERE accepting AND ended_at IS NULL"
FED = "SELECT count(*) FROM lanes JOIN batches ON batches.id = batch_id WHERE fed AND ended_at IS NULL"


def _once(text: str, old: str, new: str) -> str:
    """Replace what a pattern matches once."""
    changed, times = re.subn(old, lambda _: new, text, flags=re.DOTALL)
    assert times == 1, f"{old!r} is {times} times in {text}"
    return changed


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("SELECT current_schema()").scalar_one()
    bind.exec_driver_sql("LOCK TABLE batches, lanes, spans, counters IN ACCESS EXCLUSIVE MODE")
    bind.exec_driver_sql(COLUMNS)
    lanes = bind.exec_driver_sql(VIEW.format(name="current_lanes")).scalar_one()
    lanes = _once(lanes, r"\n    (n\.)?total,", f"\n    {LANE_TOTAL},")
    lanes = _once(lanes, r"\n   FROM lanes n", ",\n    n.fed\n   FROM lanes n")
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW current_lanes AS {lanes}")
    batches = bind.exec_driver_sql(VIEW.format(name="current_batches")).scalar_one()
    batches = _once(batches, r"\n    b\.total,", f"\n    {BATCH_TOTAL},")
    batches = _once(batches, r"SELECT counters\.cost", OF_COUNTERS)
    columns, _, rest = batches.partition("\n   FROM")
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW current_batches AS {columns}{OF_BATCH}{rest}")
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(
        f"CREATE OR REPLACE VIEW tenant_data AS {data} {UNION} SELECT 'item_keys', tenant FROM item_keys"
    )
    for name in reversed(CHANGED):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    for name in (*CHANGED, *ADDED):
        bind.exec_driver_sql(function(name, schema))
    bind.exec_driver_sql(function("count_stored_v1", schema).replace("CREATE", "CREATE OR REPLACE", 1))
    # Programs of 0026 do not know all that a claim returns.
    bind.exec_driver_sql("UPDATE schema_compatibility SET compatible_from = '0027'")


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql("LOCK TABLE batches, lanes, spans, counters IN ACCESS EXCLUSIVE MODE")
    if bind.exec_driver_sql(OPEN).scalar_one() or bind.exec_driver_sql(FED).scalar_one():
        raise StoreUnusable(
            "batches of Python operations are running, and nothing was changed: let them end, or delete them,"
            " then migrate again"
        )
    for name in reversed(ADDED):
        bind.exec_driver_sql(f"DROP FUNCTION {name}")
    views = {name: bind.exec_driver_sql(VIEW.format(name=name)).scalar_one() for name in VIEWS}
    bind.exec_driver_sql("DROP VIEW requests, provider_items, current_lanes, current_batches")
    for name, definition in views.items():
        bind.exec_driver_sql(f"CREATE VIEW {name} AS {_before(name, definition)}")
    data = bind.exec_driver_sql(TENANT_DATA).scalar_one()
    bind.exec_driver_sql(f"CREATE OR REPLACE VIEW tenant_data AS {data.rpartition(UNION)[0]}")
    bind.exec_driver_sql(DROPPED)
    empty = bind.exec_driver_sql(EMPTY).scalar_one()
    bind.exec_driver_sql(TOTAL.format(validity="NOT VALID" if empty else ""))
    bind.exec_driver_sql("UPDATE schema_compatibility SET compatible_from = '0026'")


def _before(name: str, definition: str) -> str:
    """The view without the columns of this version."""
    if name == "current_lanes":
        text = _once(definition, r"\s+CASE\s+WHEN (n\.)?fed .*? END AS total", "\n    n.total")
        return _once(text, r",\n    (n\.)?fed\b", "")
    if name == "current_batches":
        text = _once(definition, r"\(b\.total \+ COALESCE\(c\.added, 0\)\) AS total", "b.total")
        text = _once(text, r"counters\.added,\s+counters\.added_bytes,\s+", "")
        return _once(text, r",\s+b\.accepting,\s+COALESCE\(c\.added_bytes, [^\n]*\) AS added_bytes", "")
    return definition
