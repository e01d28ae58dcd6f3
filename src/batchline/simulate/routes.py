"""Routes requests to the upstream, and serves pages about it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from batchline.simulate.anthropic_batches import SimulatedMessageBatches
from batchline.simulate.http import Connection, ReceivedRequest
from batchline.simulate.recipes import ENDPOINTS
from batchline.simulate.refusals import Refusal, unknown_url, wrong_method
from batchline.simulate.settings import SimulateSettings
from batchline.simulate.tasks import SimulatedTasks
from batchline.simulate.upstream import SimulatedUpstream

_MODELS_CREATED = 1_767_225_600
_RESPONSES = frozenset({b"/responses", b"/v1/responses"})
_RESPONSE = re.compile(rb"(?:/v1)?/responses/(?P<id>[A-Za-z0-9_]+)(?P<cancel>/cancel)?")


@dataclass(frozen=True, slots=True)
class _Page:
    method: bytes
    show: Callable[[Connection], None]


class Routes:
    def __init__(
        self, settings: SimulateSettings, upstream: SimulatedUpstream, tasks: SimulatedTasks
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._tasks = tasks
        self._message_batches = SimulatedMessageBatches(
            settings.task_ms / 1000, Path(f"{settings.tasks_file}.batches") if settings.tasks_file else None
        )
        self._pages = {
            b"/stats": _Page(b"GET", self._show_stats),
            b"/executions": _Page(b"GET", self._show_executions),
            b"/metrics": _Page(b"GET", self._show_load),
            b"/tasks": _Page(b"GET", self._show_tasks),
            b"/reset": _Page(b"POST", self._reset),
            b"/models": _Page(b"GET", self._show_models),
            b"/v1/models": _Page(b"GET", self._show_models),
        }

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        if self._message_batches.serves(request.path):
            self._message_batches.handle(connection, request)
            return
        page = self._pages.get(request.path)
        response = _RESPONSE.fullmatch(request.path)
        if page is None and request.method == b"POST" and response is None:
            if self._tasks.is_submission(request.path, request.body):
                self._tasks.submit(connection, request.key, request.body)
            else:
                self._upstream.receive(connection, request.path, request.key, request.body)
            return
        try:
            if response is not None:
                self._about_task(
                    connection, request, response["id"].decode(), cancel=bool(response["cancel"])
                )
            elif request.method == b"GET" and request.path in _RESPONSES:
                self._tasks.search(connection, request.query)
            else:
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

    def _about_task(
        self, connection: Connection, request: ReceivedRequest, task_id: str, *, cancel: bool
    ) -> None:
        allowed = b"POST" if cancel else b"GET"
        if request.method != allowed:
            raise wrong_method(request.method, request.path, allowed)
        if cancel:
            self._tasks.cancel(connection, task_id)
        else:
            self._tasks.show(connection, task_id)

    def _show_stats(self, connection: Connection) -> None:
        report = {
            **self._upstream.report(),
            "tasks": self._tasks.report(),
            "message_batches": self._message_batches.report(),
        }
        connection.answer(200, msgspec.json.encode(report))

    def _show_load(self, connection: Connection) -> None:
        if not self._settings.metrics:
            raise unknown_url(b"GET", b"/metrics")
        page = self._upstream.load_page()
        connection.stream(b"text/plain; version=0.0.4; charset=utf-8", iter([page]))

    def _show_tasks(self, connection: Connection) -> None:
        connection.stream(b"application/x-ndjson", self._tasks.record_chunks())

    def _show_executions(self, connection: Connection) -> None:
        if not self._settings.record:
            raise Refusal(404, "Executions are kept only with the setting `record`.")
        connection.stream(b"application/x-ndjson", self._upstream.ledger.record_chunks())

    def _reset(self, connection: Connection) -> None:
        self._upstream.reset()
        self._tasks.reset()
        self._show_stats(connection)

    def _show_models(self, connection: Connection) -> None:
        models = [
            {"id": model, "object": "model", "created": _MODELS_CREATED, "owned_by": "batchline"}
            for model in self._settings.models
        ]
        connection.answer(200, msgspec.json.encode({"object": "list", "data": models}))
