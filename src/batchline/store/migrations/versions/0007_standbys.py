"""Workers that stand by: the creator of a batch claims its first lines for one of them.

So the batch and its first claim are one commit, and the first request goes out without another one.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STANDBYS = """
-- What a crew of an idle worker would take at once. A row is made, used up and replaced, never changed: a
-- worker that stands by anew waits for nobody who is just using its former word.
CREATE TABLE standbys (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_id  uuid NOT NULL,
    -- Which of the worker's crews.
    post       integer NOT NULL,
    until      timestamptz NOT NULL,
    -- When the worker said so, by its own clock.
    said       double precision NOT NULL,
    -- So many lines, with these routing keys (NULL: any) and none that is LIKE those.
    room       integer NOT NULL CHECK (room > 0),
    keys       text[],
    besides    text[] NOT NULL,
    -- Where the worker listens, and nobody else: anybody may LISTEN who knows a channel's name, and lines are
    -- not for everybody. Its hash is the advisory lock that the listening connection holds.
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
