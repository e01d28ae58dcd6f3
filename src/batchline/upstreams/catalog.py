"""The models that an upstream for any model lists. The lists are cached; no request waits for one for
long."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import msgspec
import structlog
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import DecodeError, TransportError
from pyreqwest.request import RequestBuilder

from batchline.config.settings import ANY_MODEL, UpstreamSettings
from batchline.secrets.redaction import Redactor
from batchline.upstreams import urls
from batchline.upstreams.faults import reason_of
from batchline.upstreams.http_upstream import Route

_TIMEOUT = 3.0
_MAX_BODY = 4 * 1024 * 1024
# A list, or the lack of one, is kept for this long.
_KEPT = 60.0

_log = structlog.get_logger("batchline.catalog")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Catalog:
    """What the upstreams for any model list under /v1/models, by the upstream's name."""

    def __init__(
        self,
        upstreams: Sequence[UpstreamSettings],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = [upstream for upstream in upstreams if ANY_MODEL in upstream.models]
        self._environ = environ
        self._clock = clock
        self._lists: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def models(self) -> dict[str, tuple[str, ...]]:
        return {upstream.name: await self._of(upstream) for upstream in self._open}

    async def _of(self, upstream: UpstreamSettings) -> tuple[str, ...]:
        at, models = self._lists.get(upstream.name, (float("-inf"), ()))
        if self._clock() - at < _KEPT:
            return models
        try:
            models = await self._ask(upstream)
        except (TransportError, DecodeError) as error:
            _log.warning("cannot list models", upstream=upstream.name, reason=reason_of(error))
            models = ()
        except (msgspec.DecodeError, ValueError) as error:
            _log.warning("cannot list models", upstream=upstream.name, reason=str(error))
            models = ()
        self._lists[upstream.name] = (self._clock(), models)
        return models

    async def _ask(self, upstream: UpstreamSettings) -> tuple[str, ...]:
        url = urls.join(upstream.base_url, "/v1/models")
        builder = ClientBuilder().follow_redirects(False).timeout(timedelta(seconds=_TIMEOUT))
        if urls.is_loopback(url):
            builder = builder.no_proxy()
        async with builder.build() as client:
            request = client.get(url)
            key = self._environ.get(upstream.api_key_env or "", "").strip()
            if key:
                request = request.bearer_auth(key)
            # Every tenant sees the names, and an upstream may quote in them what it was sent.
            return await _names(request, Redactor([key, *urls.credentials(upstream.base_url)]))


async def listed_models(route: Route) -> tuple[str, ...] | None:
    """What an upstream lists at the route of its /v1/models; None: it has no list, or none that comes in
    time."""
    try:
        return await _names(route.client.get(route.url).timeout(timedelta(seconds=_TIMEOUT)), route.redactor)
    except (TransportError, DecodeError, msgspec.DecodeError, ValueError):
        return None


async def _names(request: RequestBuilder, redactor: Redactor) -> tuple[str, ...]:
    async with request.build_streamed() as response:
        if response.status != 200:
            raise ValueError(f"it answered {response.status}")
        body = await response.body_reader.read(_MAX_BODY)
    found = msgspec.json.decode(b"" if body is None else redactor.body(body.to_bytes()), type=_Models)
    return tuple(model.id for model in found.data)
