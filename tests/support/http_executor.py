"""Items for the HTTP executor, and its verdicts on them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from uuid import UUID

from batchline.executors.http import HttpExecutor
from batchline.model import Claim, Completed, Failed, Item, Ran, RunSettings
from batchline.upstreams.http_upstream import HttpSettings, Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.timing import Timing
from tests.support.scripted_upstream import (
    Behaviour,
    Upstream,
    upstream_that,
)

BATCH = UUID("0198c0de-0000-7000-8000-000000000001")
KEY = "sk-very-secret-4711"
# For tests that are not about them.
PATIENT = HttpSettings(connect_timeout=60.0, check_timeout=60.0)
T = TypeVar("T")


def unreachable(upstreams: Upstreams) -> dict[str, str]:
    """Upstreams that cannot be connected to, and why."""
    return {view.url: view.reason for view in upstreams.views() if view.unavailable_for is not None}


def an_item(
    upstream: str | None,
    *,
    line_no: int = 1,
    attempt: int = 1,
    url: str = "/v1/chat/completions",
    timeout: float = 60.0,
    seconds_left: float = 1000.0,
    max_attempts: int = 3,
    api_key_env: str | None = None,
) -> Item:
    settings = RunSettings(upstream, api_key_env, max_attempts, timeout)
    claim = Claim(1, 1, BATCH, attempt, None, 1, url, "m", "m", seconds_left, settings)
    return Item(claim, line_no - 1, line_no, f"line-{line_no}".encode(), b'{"model": "m",  "n":1}')


def line_of(verdict: Ran) -> dict[str, Any]:
    assert isinstance(verdict, Completed | Failed), f"expected an outcome, got {verdict}"
    return cast(dict[str, Any], json.loads(verdict.output))


@asynccontextmanager
async def an_executor(
    settings: HttpSettings | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    upstream: str | None = None,
    memory: BodyMemory | None = None,
    **timing: Any,
) -> AsyncIterator[HttpExecutor]:
    upstreams = Upstreams(
        settings or PATIENT, environ={} if environ is None else environ, timing=Timing(**timing)
    )
    executor = HttpExecutor(upstreams, default=upstream, memory=memory)
    try:
        yield executor
    finally:
        await executor.close()


def verdict_on(behaviour: Behaviour, settings: HttpSettings | None = None, **options: Any) -> Ran:
    """What the executor says of one item whose upstream behaves so."""

    async def judged() -> Ran:
        async with upstream_that(behaviour) as upstream, an_executor(settings) as executor:
            return await executor.run(an_item(upstream.url, **options))

    return asyncio.run(judged())


def with_upstream(test: Callable[[Upstream], Awaitable[T]], *behaviours: Behaviour) -> T:
    async def run() -> T:
        async with upstream_that(*behaviours) as upstream:
            return await test(upstream)

    return asyncio.run(run())
