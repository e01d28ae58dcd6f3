"""/openapi.json and /docs: the OpenAPI document, with every registered operation and its schema.

If the document is not public, it requires a key. Then there is no /docs, because that page sends no key.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse

from batchline.api.auth import Called
from batchline.api.routing import AuthenticatedRoute
from batchline.config.settings import ServerSettings

_PATH = "/openapi.json"


def add_document(app: FastAPI, settings: ServerSettings) -> None:
    """For an application that was created with `openapi_url=None`."""

    async def document() -> JSONResponse:
        return JSONResponse(app.openapi())

    async def document_for_callers(called: Called) -> JSONResponse:
        return await document()

    async def swagger() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=_PATH, title=app.title)

    async def redoc() -> HTMLResponse:
        return get_redoc_html(openapi_url=_PATH, title=app.title)

    hidden: dict[str, Any] = {"include_in_schema": False}
    if settings.authentication and settings.public_openapi:
        app.add_api_route(_PATH, document, **hidden)
    else:
        # Without keys, only this machine may call, and no web page of another site.
        app.router.add_api_route(
            _PATH, document_for_callers, route_class_override=AuthenticatedRoute, **hidden
        )
    if settings.public_openapi or not settings.authentication:
        app.add_api_route("/docs", swagger, **hidden)
        app.add_api_route("/redoc", redoc, **hidden)
