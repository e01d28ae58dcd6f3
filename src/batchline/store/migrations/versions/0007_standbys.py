"""Table of idle workers for which the creator of a batch claimed lines. Dropped again in 0008."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STANDBYS = """
-- Lines that an idle worker would accept. A row is inserted and deleted, never updated, so a worker that
-- becomes idle again never waits for a transaction that uses its previous row.
CREATE TABLE standbys (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_id  uuid NOT NULL,
    -- Which part of the worker.
    post       integer NOT NULL,
    until      timestamptz NOT NULL,
    -- When the worker became idle, by its own clock.
    said       double precision NOT NULL,
    -- The number of lines, the routing keys (NULL: any), and patterns of excluded keys.
    room       integer NOT NULL CHECK (room > 0),
    keys       text[],
    besides    text[] NOT NULL,
    -- The private channel of the worker. Its name is secret, because anyone who knows it can LISTEN. Its hash
    -- is the advisory lock that the listening connection holds.
    channel    text NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX standbys_until ON standbys (until);
CREATE INDEX standbys_worker ON standbys (worker_id);
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(STANDBYS)


def downgrade() -> None:
    op.get_bind().exec_driver_sql("DROP TABLE standbys")
