"""All routes of the application, so that a test can call each of them."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from batchline.api.app import create_app
from batchline.api.context import ApiContext
from batchline.files.objects import Objects
from batchline.store.pool import Sessions
from tests.support.operations_client import REGISTRY, SETTINGS

_NOWHERE = "postgresql://nowhere.invalid/"


def routes(folder: Path) -> list[tuple[str, str]]:
    """Methods and paths, of a server whose OpenAPI document is private."""
    return asyncio.run(_routes(folder))


async def _routes(folder: Path) -> list[tuple[str, str]]:
    sessions = Sessions(_NOWHERE)
    context = ApiContext(sessions, Objects.at(folder), _NOWHERE, replace(SETTINGS, public_openapi=False))
    try:
        app = create_app(context, REGISTRY)
        return sorted({each for route in app.routes for each in _paths(route)})
    finally:
        await sessions.close()


def _paths(route: BaseRoute) -> Iterator[tuple[str, str]]:
    if (included := getattr(route, "original_router", None)) is not None:
        for each in included.routes:
            yield from _paths(each)
        return
    assert isinstance(route, APIRoute), f"{route}: say here how to call it"
    yield from ((method, route.path) for method in route.methods or ())
