"""What every request may use. Created once, when the server starts."""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from batchline.api.database_disk import DatabaseDisk
from batchline.config.settings import ServerSettings
from batchline.files.objects import Objects
from batchline.store.pool import Sessions


@dataclass(frozen=True, slots=True)
class Context:
    sessions: Sessions
    objects: Objects
    # Of the database, for processes that open their own connections.
    url: str
    settings: ServerSettings
    disk: DatabaseDisk = field(default_factory=DatabaseDisk)


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


InContext = Annotated[Context, Depends(_context)]
