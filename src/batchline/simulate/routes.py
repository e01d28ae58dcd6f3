"""Routes requests to the upstream, and serves pages about it."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from batchline.simulate.http import Connection, ReceivedRequest
from batchline.simulate.recipes import ENDPOINTS
from batchline.simulate.refusals import Refusal, unknown_url, wrong_method
from batchline.simulate.settings import SimulateSettings
from batchline.simulate.upstream import SimulatedUpstream

_MODELS_CREATED = 1_767_225_600


@dataclass(frozen=True, slots=True)
class _Page:
    method: bytes
    show: Callable[[Connection], None]


class Routes:
    def __init__(self, settings: SimulateSettings, upstream: SimulatedUpstream) -> None:
        self._settings = settings
        self._upstream = upstream
        self._pages = {
            b"/stats": _Page(b"GET", self._show_stats),
            b"/executions": _Page(b"GET", self._show_executions),
            b"/reset": _Page(b"POST", self._reset),
            b"/models": _Page(b"GET", self._show_models),
            b"/v1/models": _Page(b"GET", self._show_models),
        }

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        page = self._pages.get(request.path)
        if page is None and request.method == b"POST":
            self._upstream.receive(connection, request.path, request.key, request.body)
            return
        try:
            self._show(page, connection, request)
        except Refusal as refusal:
            # An answer to HEAD has no body.
            body = b"" if request.method == b"HEAD" else refusal.body
            connection.answer(refusal.status, body, refusal.headers)

    def _show(self, page: _Page | None, connection: Connection, request: ReceivedRequest) -> None:
        if page is None:
            if request.path in ENDPOINTS:
                raise wrong_method(request.method, request.path, b"POST")
            raise unknown_url(request.method, request.path)
        if request.method != page.method:
            raise wrong_method(request.method, request.path, page.method)
        page.show(connection)

    def _show_stats(self, connection: Connection) -> None:
        connection.answer(200, msgspec.json.encode(self._upstream.report()))

    def _show_executions(self, connection: Connection) -> None:
        if not self._settings.record:
            raise Refusal(404, "Executions are kept only with the setting `record`.")
        connection.stream(b"application/x-ndjson", self._upstream.ledger.record_chunks())

    def _reset(self, connection: Connection) -> None:
        self._upstream.reset()
        self._show_stats(connection)

    def _show_models(self, connection: Connection) -> None:
        models = [
            {"id": model, "object": "model", "created": _MODELS_CREATED, "owned_by": "batchline"}
            for model in self._settings.models
        ]
        connection.answer(200, msgspec.json.encode({"object": "list", "data": models}))
