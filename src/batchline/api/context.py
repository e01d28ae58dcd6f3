"""What every request may use. Created once, when the server starts."""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from batchline.api.browser import LocalSignIn
from batchline.api.database_disk import DatabaseDisk
from batchline.config.settings import ServerSettings
from batchline.files.objects import Objects
from batchline.metrics.database import ReadLimits
from batchline.store.pool import Sessions
from batchline.traces.submissions import BatchTracer


@dataclass(frozen=True, slots=True)
class ApiContext:
    sessions: Sessions
    objects: Objects
    # Of the database, for processes that open their own connections.
    url: str
    settings: ServerSettings
    disk: DatabaseDisk = field(default_factory=DatabaseDisk)
    metrics: ReadLimits = field(default_factory=ReadLimits)
    # None: nothing is traced.
    tracer: BatchTracer | None = None
    # Of `batchline ui`: how its browser signs in, and whose batches it shows.
    local: LocalSignIn | None = None
    tenant: str | None = None
    # Seconds between two reads for live updates.
    live_pause: float = 1.0


def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


InContext = Annotated[ApiContext, Depends(_context)]
