"""Liveness and readiness, for load balancers. They need no key."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from batchline.api.context import InContext
from batchline.files.objects import ObjectStoreUnavailable
from batchline.store import health
from batchline.store.errors import StoreFull, StoreReadOnly, StoreUnavailable

router = APIRouter(tags=["health"])

_PROBE = "readyz"


class Health(BaseModel):
    status: str


class Readiness(Health):
    database: str
    objects: str


@router.get("/healthz")
async def healthz() -> Health:
    """The process is running."""
    return Health(status="ok")


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def readyz(context: InContext) -> JSONResponse:
    """The database accepts writes, and the object store is reachable and has free space."""
    database = objects = "ok"
    try:
        async with context.sessions.one() as session:
            await health.ping(session)
        # A full database can still be read.
        if await context.disk.is_full():
            database = "disk full"
    except StoreFull:
        database = "disk full"
    except StoreReadOnly:
        database = "read-only"
    except StoreUnavailable:
        database = "unavailable"
    try:
        await context.objects.exists(_PROBE)
        # A full folder can still be read.
        if await asyncio.to_thread(context.objects.has_no_room):
            objects = "disk full"
    except ObjectStoreUnavailable:
        objects = "unavailable"
    ready = (database, objects) == ("ok", "ok")
    answer = Readiness(status="ready" if ready else "unavailable", database=database, objects=objects)
    return JSONResponse(answer.model_dump(), 200 if ready else 503)
