"""The pages: static files of the package. Every path below /ui that is no asset answers the one page,
whose script shows what the path names."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response

from batchline.api.errors import ApiError

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
_INDEX = "index.html"
# Browsers ask each time whether a file has changed: pages and scripts must fit each other.
_CACHE = "no-cache"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    media_type: str
    etag: str


class StaticPages:
    """The files of a folder, read once. Only these are served, so no path leads elsewhere."""

    def __init__(self, folder: Traversable) -> None:
        self._files: Mapping[str, StaticFile] = dict(_found(folder))

    @classmethod
    def of_package(cls) -> "StaticPages":
        return cls(files("batchline.dashboard") / "static")

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/", self._index, methods=["GET", "HEAD"])
        router.add_api_route("/ui/assets/{name:path}", self._asset, methods=["GET", "HEAD"])
        router.add_api_route("/ui", self._index, methods=["GET", "HEAD"])
        router.add_api_route("/ui/{path:path}", self._index, methods=["GET", "HEAD"])
        return router

    async def _index(self, request: Request) -> Response:
        return self._answer(request, _INDEX)

    async def _asset(self, request: Request, name: str) -> Response:
        return self._answer(request, name)

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise ApiError(404, "There is no such page.", code="unknown_url")
        headers = {"etag": file.etag, "cache-control": _CACHE}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)


def _found(folder: Traversable, below: str = "") -> list[tuple[str, StaticFile]]:
    if not folder.is_dir():
        return []
    found: list[tuple[str, StaticFile]] = []
    for each in folder.iterdir():
        name = below + each.name
        if each.is_dir():
            found += _found(each, f"{name}/")
        elif (kind := _TYPES.get(name[name.rfind(".") :])) is not None:
            content = each.read_bytes()
            found.append((name, StaticFile(content, kind, f'"{sha256(content).hexdigest()[:32]}"')))
    return found
