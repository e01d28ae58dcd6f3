"""Governed operations at scale: routing keys of their own.

The lanes of operations are routed by their URL. By the bare name of the operation they looked like a model's,
and a worker without operations could not leave them alone.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ROUTING = """
UPDATE lanes SET key = url WHERE starts_with(url, '/operations/') AND key <> url;
"""

ROUTING_BACK = """
UPDATE lanes SET key = model WHERE starts_with(url, '/operations/');
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(ROUTING)


def downgrade() -> None:
    op.get_bind().exec_driver_sql(ROUTING_BACK)
