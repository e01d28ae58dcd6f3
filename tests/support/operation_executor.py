"""One operation, its executor, and the executor's verdicts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from batchline.config.settings import UpstreamSettings
from batchline.executors.executor import Fence
from batchline.executors.http import HttpExecutor
from batchline.executors.operation import OperationExecutor
from batchline.governance.operations import Operation, url_of
from batchline.governance.outcomes import Means, Outcome
from batchline.governance.registry import Registry
from batchline.governance.templates import RequestTemplate
from batchline.model import Deferred, Failed, Item, Ran
from batchline.upstreams.http_upstream import HttpSettings, Upstreams
from tests.support.http_executor import PATIENT, an_item, line_of
from tests.support.scripted_upstream import Behaviour, Upstream, answers, upstream_that

KEY = "the-key-of-the-cluster"
ITEM = {"name": "vm 1", "size": 3, "password": "hunter2!"}
MAKE = Operation(
    "make",
    RequestTemplate(
        "cluster",
        "/things/{name}",
        "PUT",
        query={"force": "{force}"},
        headers={"X-Size": "{size}"},
        body={"spec": {"size": "{size}"}, "secret": "{password}"},
        content_type="application/merge-patch+json",
    ),
    outcomes=(
        Outcome(404, Means.DONE),
        Outcome(409, Means.SAME, "answer.reason == 'AlreadyExists'"),
        Outcome(409, Means.RETRY, "answer.reason == 'Conflict'"),
        Outcome(409, Means.FAILED),
        Outcome(202, Means.RETRY, "answer.phase == 'Pending'"),
    ),
    confirm="/things/{name}/now",
    gone_when="deleted",
)


class Elsewhere:
    """Takes what is no operation."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.calls: list[str] = []

    async def run(self, item: Item) -> Ran:
        self.items.append(item)
        return Deferred(item)

    def fenced_by(self, fence: Fence) -> None:
        self.calls.append("fenced_by")

    def wind_down(self) -> None:
        self.calls.append("wind_down")

    async def close(self) -> None:
        self.calls.append("close")


def an_order(item: Any = ITEM, *, name: str = "make", attempt: int = 1) -> Item:
    plain = an_item(None, url=url_of(name), attempt=attempt)
    return replace(plain, body=item if isinstance(item, bytes) else json.dumps(item).encode())


def said(status: int, body: Any = None, *headers: bytes) -> Behaviour:
    return answers(status, b"" if body is None else json.dumps(body).encode(), *headers)


async def running(
    upstream: Upstream,
    test: Callable[[OperationExecutor], Awaitable[Any]],
    *operations: Operation,
    http_settings: HttpSettings | None = None,
) -> Any:
    http = HttpExecutor(Upstreams(http_settings or PATIENT, environ={"THE_KEY": KEY}))
    settings = UpstreamSettings("cluster", f"{upstream.url}/prefix", "THE_KEY", models=())
    executor = OperationExecutor(Registry(operations or (MAKE,)), (settings,), http, Elsewhere())
    try:
        return await test(executor)
    finally:
        await http.close()


def outcome(
    *behaviours: Behaviour,
    item: Any = ITEM,
    attempt: int = 1,
    name: str = "make",
    http_settings: HttpSettings | None = None,
) -> tuple[Ran, Any]:
    """The verdict, and the requests that led to it."""

    async def run() -> tuple[Ran, Any]:
        async with upstream_that(*behaviours) as upstream:

            async def test(executor: OperationExecutor) -> Ran:
                return await executor.run(an_order(item, attempt=attempt, name=name))

            return await running(upstream, test, http_settings=http_settings), upstream.requests

    return asyncio.run(run())


def failure(*behaviours: Behaviour, **options: Any) -> Failed:
    verdict, _ = outcome(*behaviours, **options)
    assert isinstance(verdict, Failed), f"expected a failure, got {verdict}"
    return verdict


def code_of(verdict: Ran) -> str:
    code: str = line_of(verdict)["error"]["code"]
    return code
