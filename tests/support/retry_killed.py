"""Retries a batch in a process of its own, which kills itself with SIGKILL before one of its statements,
or after the last one.

    python -m tests.support.retry_killed URL BATCH STATEMENT
"""

import asyncio
import os
import signal
import sys
from typing import Any
from uuid import UUID

from batchline.batches.retry import retry
from batchline.model import RetrySelection
from batchline.store import batches
from batchline.store import retry as store_retry
from batchline.store.session import Session, run, run_records
from batchline.store.statements import Statement

# In their order. The last one is the commit.
STATEMENTS = (
    "lock_ordinary_batch",
    "get_batch",
    "keep_input",
    "put_back_unrun",
    "put_back_failed",
    "reopen_batch",
    "commit",
    "nothing",
)


def kill_before(name: str) -> None:
    def check(statement: Statement) -> None:
        if statement.name == name:
            die()

    async def run_unless(connection: Any, statement: Statement, params: Any) -> Any:
        check(statement)
        rows = await run(connection, statement, params)
        if name == "commit" and statement.name == "reopen_batch":
            die()
        return rows

    async def records_unless(connection: Any, statement: Statement, params: Any) -> Any:
        check(statement)
        return await run_records(connection, statement, params)

    vars(store_retry).update(run=run_unless, run_records=records_unless)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, batch_id: UUID, name: str) -> None:
    assert name in STATEMENTS
    async with Session(url, "retry") as session:
        batch = await batches.get(session, batch_id)
        assert batch is not None
        kill_before(name)
        await retry(session, batch, RetrySelection())
        # The commit is in the database, and nobody has heard of it.
        die()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], UUID(sys.argv[2]), sys.argv[3]))
