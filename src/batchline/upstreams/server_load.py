"""How many requests run and wait at an upstream, by its own account: the /metrics of vLLM, SGLang, llama.cpp.

A limit of concurrency can follow it: while requests wait there, more in flight gain nothing. All workers see
the same queue, so they give way together.

It is read beside the requests, never on their way: while some are in flight, about once per second, within
bounds of time and size. If an upstream does not report its load, the next request follows minutes later.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from pyreqwest.client import Client
from pyreqwest.exceptions import RequestError
from pyreqwest.http import Url

from batchline.upstreams import urls

# Seconds between two reads, and for one. If a read takes longer, so does the pause after it.
_EVERY = 1.0
_TIMEOUT = 2.0
_PAUSE_PER_READ = 20.0
# After no answer, the pause before the next request doubles from _EVERY to this.
_MAX_PAUSE = 60.0
# The pause if the upstream does not report its load.
_ASK_AGAIN = 600.0
# vLLM's page has about 100 kB per model.
_MAX_PAGE = 1024 * 1024

# The names of running and waiting requests.
_NAMES = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
_WANTED = tuple(name for names in _NAMES for name in names)
# A name, its labels, a number, a time.
_SAMPLE = re.compile(r"(?P<name>[a-z_:]+)(?:\{.*\})?[ \t]+(?P<value>[^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*")
# A version at the end of a base URL's path: /v1, /v1beta/openai.
_VERSION = re.compile(r"/v[0-9][^/]*(?:/.*)?$")


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Requests of all clients that the upstream executes, and that wait in its queue."""

    running: int
    waiting: int


def parsed_load(page: str) -> ServerLoad | None:
    """The load on a page in Prometheus' format, summed over all engines; None if it shows none."""
    values: dict[str, float] = {}
    for line in page.splitlines():
        # Most of a page is about something else.
        sample = _SAMPLE.fullmatch(line) if line.startswith(_WANTED) else None
        if sample is not None:
            values[sample["name"]] = values.get(sample["name"], 0.0) + _number(sample["value"])
    for running, waiting in _NAMES:
        if running in values and waiting in values:
            return _load(values[running], values[waiting])
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _load(running: float, waiting: float) -> ServerLoad | None:
    """None for what is no number of requests."""
    if not all(0 <= value < 1e9 for value in (running, waiting)):
        return None
    return ServerLoad(round(running), round(waiting))


def load_url(upstream: str) -> Url:
    """Where an upstream has its metrics: beside its version, which is the root of most hosts."""
    base = urls.parse(upstream)
    return base.with_path(_VERSION.sub("", base.path.rstrip("/")) + "/metrics")


class LoadReader:
    """Reads the load of one upstream, whenever it is due."""

    def __init__(self, upstream: str, clock: Callable[[], float]) -> None:
        self._upstream = upstream
        self._clock = clock
        self._next = -math.inf
        self._failures = 0

    @property
    def due(self) -> bool:
        return self._clock() >= self._next

    async def read(self, client: Client) -> ServerLoad | None:
        """The load now; None if it is not known. The client sends the API key, if the upstream needs one."""
        began = self._clock()
        try:
            page = await self._page(client)
        except (RequestError, ValueError):
            self._failures += 1
            self._pause(min(_MAX_PAUSE, _EVERY * 2.0 ** min(self._failures, 10)))
            return None
        self._failures = 0
        load = None if page is None else parsed_load(page)
        if load is None:
            self._pause(_ASK_AGAIN)
        else:
            self._pause(max(_EVERY, _PAUSE_PER_READ * (self._clock() - began)))
        return load

    async def _page(self, client: Client) -> str | None:
        """None: there is none."""
        request = client.get(load_url(self._upstream)).timeout(timedelta(seconds=_TIMEOUT))
        async with request.build_streamed() as response:
            if response.status != 200:
                return None
            body = await response.body_reader.read(_MAX_PAGE + 1)
        if body is None or len(body) > _MAX_PAGE:
            return None
        return body.to_bytes().decode("utf-8", "replace")

    def _pause(self, seconds: float) -> None:
        self._next = self._clock() + seconds
