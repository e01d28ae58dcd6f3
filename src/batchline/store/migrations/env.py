"""Alembic's entry point. The connection is handed in by `batchline.store.migrate`."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
