"""Tries one request at an upstream, as a line of a batch would be sent, without a batch."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace
from pyreqwest.request import RequestBuilder

from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.executors.aliases import with_model
from batchline.executors.http import HttpExecutor
from batchline.executors.http_answer import Answer
from batchline.executors.http_request import request_limit
from batchline.files import parsing
from batchline.files.parsing import LineRequest, ReadingRules
from batchline.model import Claim, Failed, Item, Ran, Retried
from batchline.model.failure import error_of_line
from batchline.model.ids import new_id
from batchline.upstreams.http_upstream import Route

# Seconds for one answer: a person waits for it.
_TIMEOUT = 120.0
_MAX_BODY = 256 * 1024
# Requests of one tenant at once, and of all. Each may take two minutes, so further ones are refused.
MAX_PER_TENANT = 2
MAX_AT_ONCE = 16


class TriedRequest(msgspec.Struct, frozen=True):
    """What came back. `status` is null if there was no answer; then the body says why."""

    status: int | None
    body: Any
    milliseconds: float


class UnknownUpstream(ValueError):
    """No upstream of the settings has this name or serves this model. The message is for a person."""


class TooManyTrials(Exception):
    """The tenant, or all tenants together, try too many requests at once. The message is for a person."""


class Playground:
    """Connections are kept until `close`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        # How many run, by tenant.
        self._running: Counter[str] = Counter()
        self._executor: HttpExecutor | None = None

    async def close(self) -> None:
        if self._executor is not None:
            await self._executor.close()

    async def attempt(self, tenant: str, request: LineRequest, upstream: str | None) -> TriedRequest:
        """Send a request once. Raises UnknownUpstream and TooManyTrials."""
        item = _item(request, self._chosen(request.model, upstream))
        with self._slot(tenant):
            if self._executor is None:
                self._executor = HttpExecutor()
            began = time.monotonic()
            answer = await self._executor.exchange(item, _post)
        return _tried(answer, round((time.monotonic() - began) * 1000, 1))

    @contextmanager
    def _slot(self, tenant: str) -> Iterator[None]:
        if self._running[tenant] >= MAX_PER_TENANT or self._running.total() >= MAX_AT_ONCE:
            raise TooManyTrials("Too many requests are being tried. Wait for the answer of another one.")
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            # Tenants come and go.
            self._running += Counter()

    def _chosen(self, model: str, name: str | None) -> UpstreamSettings:
        named = (each for each in self._settings.upstreams if each.name == name)
        found = self._settings.upstream_for(model) if name is None else next(named, None)
        if found is None:
            wanted = f'serves the model "{model}"' if name is None else f'is called "{name}"'
            raise UnknownUpstream(f"No upstream {wanted}.")
        if found.provider is not None:
            raise UnknownUpstream(
                f'The upstream "{found.name}" is an asynchronous provider.'
                " Create a batch of one line instead."
            )
        return found


def examined(endpoint: str, body: bytes) -> LineRequest:
    """A request as a line of a file. Raises LineFault."""
    line = b'{"custom_id":"playground","method":"POST","url":%b,"body":%b}'
    return parsing.examine(line % (msgspec.json.encode(endpoint), body), ReadingRules())


def _item(request: LineRequest, upstream: UpstreamSettings) -> Item:
    settings = replace(upstream.run_settings(), timeout=min(upstream.timeout, _TIMEOUT))
    claim = Claim(0, 0, new_id(), 1, None, 1, request.url, request.model, request.model, _TIMEOUT, settings)
    name = upstream.aliases.get(request.model)
    body = request.body if name is None else with_model(request.body, name)
    return Item(claim, 0, 1, request.custom_id.encode(), body)


def _post(item: Item, route: Route) -> RequestBuilder:
    return (
        route.client.post(route.url)
        .header("Idempotency-Key", item.idempotency_key)
        .timeout(request_limit(item))
        .body_bytes(item.body)
    )


def _tried(answer: Answer | Ran, milliseconds: float) -> TriedRequest:
    match answer:
        case Answer():
            return TriedRequest(answer.status, _displayed(answer.body), milliseconds)
        case Retried():
            return TriedRequest(None, {"code": answer.error_code, "message": answer.message}, milliseconds)
        case Failed():
            code, message = error_of_line(answer.output, answer.status_code)
            return TriedRequest(answer.status_code, {"code": code, "message": message}, milliseconds)
        case _:
            said = {
                "code": "not_sent",
                "message": "The request could not be sent: the upstream is unreachable.",
            }
            return TriedRequest(None, said, milliseconds)


def _displayed(body: bytes) -> Any:
    if len(body) <= _MAX_BODY:
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            pass
    text = body[:_MAX_BODY].decode("utf-8", "replace")
    return {"text": text, "cut": len(body) > _MAX_BODY, "bytes": len(body)}
