"""Upstreams that speak HTTP: their connections, API keys and routes.

A request goes nowhere but below its upstream, and never without the API key that its batch names.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from msgspec.structs import replace
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DecodeError, RequestError, RequestTimeoutError, TransportError
from pyreqwest.http import HeaderMap, Url

from batchline import __version__
from batchline.secrets.redaction import Redactor
from batchline.upstreams import urls
from batchline.upstreams.breaker import GATEWAY_ERRORS
from batchline.upstreams.crashes import Reach
from batchline.upstreams.faults import never_left, reason_of
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.upstreams.retry import Backoff
from batchline.upstreams.server_load import LoadReader
from batchline.upstreams.timing import Timing
from batchline.upstreams.upstream import Upstream
from batchline.upstreams.view import UpstreamView

ANTHROPIC_VERSION = "2023-06-01"


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How requests are made. Times are in seconds; that for a whole request is the batch's `timeout`."""

    connect_timeout: float = 10.0
    # uvicorn closes a connection that was idle for 5 s: a request sent on it just then would be lost.
    idle_timeout: float = 4.0
    # A peer that vanished without a word is noticed after about a minute, not after the batch's timeout.
    keepalive_after: float = 30.0
    keepalive_every: float = 10.0
    keepalive_probes: int = 3
    check_timeout: float = 5.0
    # For each MiB of a large answer: while it is read, it holds memory that others wait for.
    piece_timeout: float = 60.0
    max_body: int = 64 * 1024 * 1024
    # Of an answer to an operation, which is decoded: that takes up to thirty times its size.
    max_operation_body: int = 4 * 1024 * 1024
    retry: Backoff = field(default_factory=lambda: Backoff(minimum=0.5, maximum=60.0))
    connect_retry: Backoff = field(default_factory=lambda: Backoff(minimum=0.5, maximum=30.0))


class MissingKey(Exception):
    """The API key that a batch names is missing or cannot be sent. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where items of one kind go: made once, used for each of them."""

    upstream: "HttpUpstream"
    client: Client
    url: Url
    redactor: Redactor


class HttpUpstream(Upstream):
    """Keeps a pool of connections for each API key. `traced`: requests carry the ids of their traces.
    `anthropic`: they carry the headers of Anthropic's API."""

    def __init__(
        self,
        url: str,
        concurrency: int,
        stopping: asyncio.Event,
        timing: Timing,
        settings: HttpSettings,
        environ: Mapping[str, str],
        *,
        traced: bool = False,
        anthropic: bool = False,
    ) -> None:
        super().__init__(url, concurrency, stopping, timing, settings.connect_retry)
        self._settings = settings
        self._environ = environ
        self.traced = traced
        self._anthropic = anthropic
        self._clients: dict[str | None, Client] = {}
        # Whether its metrics may be requested.
        self.reports_load = True
        self._load = LoadReader(url, timing.clock)

    def route(self, path: str, api_key_env: str | None) -> Route:
        """Raises InvalidUpstream, InvalidPath or MissingKey."""
        key = self._key(api_key_env)
        client, url = self._client(key), urls.join(self.url, path)
        return Route(self, client, url, Redactor([*urls.credentials(self.url), *([key] if key else ())]))

    async def check(self, api_key_env: str | None = None, batches: str | None = None) -> str | None:
        """None if requests can be made; otherwise why not, for a person. `batches`: the path of the batch
        API that must be there."""
        limit, path = self._settings.check_timeout, batches or "/v1/models"
        try:
            client = self._client(self._key(api_key_env))
            request = client.get(urls.join(self.url, path)).timeout(timedelta(seconds=limit))
            async with request.build_streamed() as response:
                status = response.status
        except (urls.InvalidUpstream, MissingKey) as error:
            return str(error)
        except (TransportError, DecodeError) as error:
            if isinstance(error, RequestTimeoutError) and not never_left(error):
                return f"{self.displayed} did not answer within {limit:g} s"
            return f"{self.displayed} is unreachable: {reason_of(error)}"
        if batches is not None and status in (404, 405):
            return f"{self.displayed} has no batch API (GET {batches} answers {status}): use --via direct"
        if status not in (401, 403):
            return None
        if api_key_env is None:
            return (
                f"{self.displayed} requires an API key ({status}):"
                " name the environment variable that holds one"
            )
        return f"{self.displayed} refuses the API key in {api_key_env} ({status})"

    async def probe(self) -> Reach:
        """Request the health path, or the list of models: what the answer says does not matter then, unless a
        gateway says that the upstream is away."""
        try:
            client = next(reversed(self._clients.values()), None) or self._client(None)
            url = urls.join(self.url, "/v1/models") if self.health_path is None else self._health_url()
            request = client.get(url).timeout(timedelta(seconds=self._settings.check_timeout))
            async with request.build_streamed() as response:
                status = response.status
        except (TransportError, DecodeError) as error:
            return Reach.UNREACHABLE if never_left(error) else Reach.UNCLEAR
        except (RequestError, ValueError):
            return Reach.UNCLEAR
        away = status in GATEWAY_ERRORS if self.health_path is None else not 200 <= status < 300
        return Reach.AWAY if away else Reach.PRESENT

    async def read_load(self) -> None:
        """Note what runs and waits there, by its own account, if it has one and it is time to ask.

        That is only while requests are in flight under a limit that is found by measuring. The request
        has the API key of the last of them: an upstream that needs one may answer to nothing else.
        """
        client = next(reversed(self._clients.values()), None)
        wanted = self.reports_load and bool(self.sent) and self.follows_load
        if client is not None and wanted and self._load.due:
            self.loaded(await self._load.read(client))

    async def close(self) -> None:
        await super().close()
        for client in self._clients.values():
            await client.close()

    def _health_url(self) -> Url:
        return urls.parse(self.url).with_path(self.health_path or "/")

    def _key(self, variable: str | None) -> str | None:
        """The API key in the variable. None if no variable is named; a named one must be set."""
        if variable is None:
            return None
        # A line feed at the end is what reading a key from a file leaves.
        key = self._environ.get(variable, "").strip()
        if not key:
            raise MissingKey(
                f"the environment variable {variable}, which should hold the API key, is not set"
            )
        if not key.isascii() or not key.isprintable():
            raise MissingKey(f"the API key in {variable} has characters that no header can carry")
        return key

    def _client(self, key: str | None) -> Client:
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _new_client(
                urls.parse(self.url), key, self._settings, anthropic=self._anthropic
            )
        return client


def _new_client(upstream: Url, key: str | None, settings: HttpSettings, *, anthropic: bool) -> Client:
    headers = HeaderMap({"Content-Type": "application/json"})
    if anthropic:
        headers.insert("anthropic-version", ANTHROPIC_VERSION)
        if key is not None:
            headers.insert("x-api-key", key, is_sensitive=True)
    elif key is not None:
        headers.insert("Authorization", f"Bearer {key}", is_sensitive=True)
    builder = (
        ClientBuilder()
        .http1_only()
        .user_agent(f"batchline/{__version__}")
        .default_headers(headers)
        # A body and its key are sent where the operator said, and nowhere else.
        .follow_redirects(False)
        .connect_timeout(timedelta(seconds=settings.connect_timeout))
        # The pool keeps any number of idle connections: there are never more than were in flight.
        .pool_idle_timeout(timedelta(seconds=settings.idle_timeout))
        .tcp_keepalive(timedelta(seconds=settings.keepalive_after))
        .tcp_keepalive_interval(timedelta(seconds=settings.keepalive_every))
        .tcp_keepalive_retries(settings.keepalive_probes)
    )
    if urls.is_loopback(upstream):
        # A proxy from the environment would look for it on its own machine.
        builder = builder.no_proxy()
    return builder.build()


class Upstreams:
    """All upstreams of a worker, by URL: one object each, shared by executors and producers."""

    def __init__(
        self,
        settings: HttpSettings | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        timing: Timing | None = None,
        concurrency: int = 64,
        traced: Iterable[str] = (),
        anthropic: Iterable[str] = (),
        budgets: RateBudgets | None = None,
    ) -> None:
        self.settings = settings or HttpSettings()
        self.budgets = budgets or RateBudgets()
        self.timing = timing or Timing()
        self._environ = environ
        self._concurrency = concurrency
        # The URLs of those whose requests carry the ids of their traces.
        self._traced = frozenset(map(urls.normalized, traced))
        # The URLs of those with Anthropic's API.
        self._anthropic = frozenset(map(urls.normalized, anthropic))
        self._stopping = asyncio.Event()
        self._by_url: dict[str, HttpUpstream] = {}

    def separate(self, url: str, *, anthropic: bool) -> HttpUpstream:
        """One that is not shared, for requests with settings of their own. Close it."""
        return HttpUpstream(
            urls.normalized(url),
            self._concurrency,
            self._stopping,
            self.timing,
            self.settings,
            self._environ,
            anthropic=anthropic,
        )

    def get(self, url: str, concurrency: int | None = None) -> HttpUpstream:
        """The upstream at this URL. `concurrency`: how many requests may be in flight there from now on."""
        url = urls.normalized(url)
        upstream = self._by_url.get(url)
        if upstream is None:
            upstream = self._by_url[url] = HttpUpstream(
                url,
                concurrency or self._concurrency,
                self._stopping,
                self.timing,
                self.settings,
                self._environ,
                traced=url in self._traced,
                anthropic=url in self._anthropic,
            )
        elif concurrency is not None:
            upstream.resize(concurrency)
        return upstream

    def views(self) -> list[UpstreamView]:
        """All upstreams as they stand now."""
        return [self._view(upstream) for upstream in self._by_url.values()]

    def _view(self, upstream: HttpUpstream) -> UpstreamView:
        """A budget that requests wait for is what limits them, whatever the limit in flight follows."""
        view, budget = upstream.view(), self.budgets.limiting(upstream.url)
        return view if budget is None else replace(view, budget=budget, signal="budget")

    async def read_loads(self) -> None:
        """Ask all upstreams that have requests in flight for their load, as far as that is due."""
        await asyncio.gather(*(upstream.read_load() for upstream in list(self._by_url.values())))

    async def check_health(self) -> None:
        """Request the health paths of all upstreams that are not in use, as far as that is due."""
        await asyncio.gather(*(upstream.check_health() for upstream in list(self._by_url.values())))

    def wind_down(self) -> None:
        """The worker stops: no request waits for an upstream any more."""
        self._stopping.set()
        self.budgets.close()

    async def close(self) -> None:
        for upstream in self._by_url.values():
            await upstream.close()
