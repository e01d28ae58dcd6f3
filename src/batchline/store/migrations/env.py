"""Alembic's entry point. `batchline.store.migrate` passes the connection and the schema."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table_schema=attributes["schema"],
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
