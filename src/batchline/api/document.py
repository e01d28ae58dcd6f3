"""/openapi.json and /docs: the OpenAPI document, with every registered operation and its schema.

If the document is not public, it requires a key. Then there is no /docs, because that page sends no key.

The page and all that it loads come from this server; its scripts are those of the package fastapi-swagger.
Its policy lets a browser load nothing else, so it works without the internet, and tells no one who reads it.
"""

from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from batchline.api.auth import Called
from batchline.api.routing import AuthenticatedRoute
from batchline.config.settings import ServerSettings

_PATH = "/openapi.json"
_SCRIPT = "text/javascript"
# By their names below /docs/: the file in the package, and its type.
_ASSETS = {
    "swagger-ui-bundle.js": ("swagger-ui-bundle.js", _SCRIPT),
    "swagger-ui.css": ("swagger-ui.css", "text/css"),
    "favicon.png": ("favicon-32x32.png", "image/png"),
}
# Its addresses are relative, so that they are right behind a proxy that adds a prefix.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Batchline: the HTTP API</title>
<link rel="icon" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<script src="docs/swagger-ui-bundle.js" defer></script>
<script src="docs/start.js" defer></script>
</head>
<body>
<div id="docs"></div>
<noscript>This page needs JavaScript. For programs: <a href="openapi.json">openapi.json</a></noscript>
</body>
</html>
"""
# Without a validator: the usual one is another host. The key that a reader enters is kept in memory only.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
  presets: [SwaggerUIBundle.presets.apis],
});
"""
# No inline script or style, nothing from other hosts, no frame around it. Swagger UI has its icons as data.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CACHED = {**_HEADERS, "Cache-Control": "max-age=3600"}


def add_document(app: FastAPI, settings: ServerSettings) -> None:
    """For an application that was created with `openapi_url=None`."""

    async def document() -> JSONResponse:
        return JSONResponse(app.openapi())

    async def document_for_callers(called: Called) -> JSONResponse:
        return await document()

    hidden: dict[str, Any] = {"include_in_schema": False}
    if settings.authentication and settings.public_openapi:
        app.add_api_route(_PATH, document, **hidden)
    else:
        # Without keys, only this machine may call, and no web page of another site.
        app.router.add_api_route(
            _PATH, document_for_callers, route_class_override=AuthenticatedRoute, **hidden
        )
    if settings.public_openapi or not settings.authentication:
        _add_page(app, hidden)


def _add_page(app: FastAPI, hidden: dict[str, Any]) -> None:
    folder = resources.files("fastapi_swagger") / "resources"

    def add(path: str, response: Callable[[], Response]) -> None:
        async def answer() -> Response:
            return response()

        app.add_api_route(path, answer, **hidden)

    add("/docs", lambda: HTMLResponse(_PAGE, headers=_HEADERS))
    add("/docs/start.js", lambda: Response(_START, media_type=_SCRIPT, headers=_CACHED))
    for name, (file, media_type) in _ASSETS.items():
        path = str(folder / file)
        add(f"/docs/{name}", partial(FileResponse, path, media_type=media_type, headers=_CACHED))
