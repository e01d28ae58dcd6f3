"""Count requests per minute by kind and by user, so that a flood of requests counts only for its user."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Only the counts of the current minute are lost.
BY_USER = """
DELETE FROM api_windows;
ALTER TABLE api_windows
    DROP CONSTRAINT api_windows_pkey,
    -- What is counted together: reads, writes, decisions.
    ADD COLUMN kind text NOT NULL CHECK (kind IN ('read', 'write', 'decision')),
    -- Both are empty in the row that counts all users.
    ADD COLUMN tenant text NOT NULL,
    ADD COLUMN user_id text NOT NULL,
    ADD PRIMARY KEY (starts_at, kind, tenant, user_id);
"""

OF_ALL = """
DELETE FROM api_windows;
ALTER TABLE api_windows
    DROP CONSTRAINT api_windows_pkey,
    DROP COLUMN kind,
    DROP COLUMN tenant,
    DROP COLUMN user_id,
    ADD PRIMARY KEY (starts_at);
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(BY_USER)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(OF_ALL)
