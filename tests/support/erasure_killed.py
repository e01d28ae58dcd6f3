"""Erases a tenant in a process of its own, which kills itself with SIGKILL before or after a statement.

    python -m tests.support.erasure_killed URL OBJECTS TENANT before|after STATEMENT

It ends with exit code 3 if the erasure waits for something, and with 0 if it is done.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from batchline.batches import erasure
from batchline.batches.erasure import ErasureProgress
from batchline.files.objects import Objects
from batchline.store import tenants
from batchline.store.session import Session, run
from batchline.store.statements import Statement

# One of each step, in their order.
STATEMENTS = (
    "close",
    "erase_batches",
    "drop_deleted_lanes",
    "erase_events",
    "erase_deliveries",
    "forget_deleted_batches",
    "drop_parts",
    "erase_uploads",
    "delete_tenant_files",
    "drop_file_lines",
    "file_purged",
    "erase_files",
    "erase_tenant_rows",
    "finish_erasure",
)
WAITS = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(moment: str, name: str) -> None:
    rows_of = Session.rows

    async def rows(self: Session, statement: Statement, params: Any, **more: Any) -> Any:
        if statement.name == name and moment == "before":
            die()
        found = await rows_of(self, statement, params, **more)
        if statement.name == name:
            die()
        return found

    async def run_once(connection: Any, statement: Statement, params: Any) -> Any:
        if statement.name == name and moment == "before":
            die()
        found = await run(connection, statement, params)
        if statement.name == name:
            # Before the commit.
            die()
        return found

    vars(tenants).update(run=run_once)
    setattr(Session, "rows", rows)  # noqa: B010


async def main(url: str, objects: str, tenant: str, moment: str, name: str) -> int:
    assert name in STATEMENTS
    async with Session(url, "erasure") as session:
        kill_at(moment, name)
        progress = await erasure.erase(session, Objects.at(objects), tenant, seconds=600)
    return 0 if progress is ErasureProgress.DONE else WAITS


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
