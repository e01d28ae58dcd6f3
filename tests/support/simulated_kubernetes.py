"""A client for the simulated Kubernetes API."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from batchline.simulate import Simulator
from examples.kubevirt.kubernetes import KubernetesRoutes
from examples.kubevirt.settings import ClusterSettings
from examples.kubevirt.simulator import simulator as a_simulator
from tests.support.held_timers import HeldTimers
from tests.support.simulated_client import Answer, Client
from tests.support.waiting import LIMIT

VMS = "/apis/kubevirt.io/v1/namespaces/test/virtualmachines"
ACTIONS = "/apis/subresources.kubevirt.io/v1/namespaces/test/virtualmachines"


class Api:
    """A client of a running API."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        # Sent with every request.
        self.headers: dict[str, str] = {}

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        client = Client(*await asyncio.open_connection(self.host, self.port))
        content = b"" if body is None else json.dumps(body).encode()
        lines = "".join(
            f"{name.replace('_', '-')}: {value}\r\n" for name, value in (self.headers | headers).items()
        )
        head = f"{method} {path} HTTP/1.1\r\nHost: sim\r\n{lines}Content-Length: {len(content)}\r\n\r\n"
        client.send(head.encode() + content)
        try:
            return await client.answer()
        finally:
            await client.close()

    async def made(self, name: str = "vm-1", strategy: str = "Halted") -> Any:
        answer = await self.ask("POST", VMS, a_machine(name, strategy))
        assert answer.status == 201, answer.json
        return answer.json

    async def until(self, path: str, fact: Callable[[Answer], bool]) -> Answer:
        async with asyncio.timeout(LIMIT):
            while not fact(answer := await self.ask("GET", path)):
                pass
        return answer

    async def until_it_is(self, status: str, name: str = "vm-1") -> None:
        await self.until(f"{VMS}/{name}", lambda answer: answer.json["status"]["printableStatus"] == status)

    async def until_gone(self, name: str = "vm-1") -> None:
        await self.until(f"{VMS}/{name}", lambda answer: answer.status == 404)

    async def power(self, action: str, name: str = "vm-1", body: Any = None) -> Answer:
        return await self.ask("PUT", f"{ACTIONS}/{name}/{action}", {} if body is None else body)


def a_machine(name: str = "vm-1", strategy: str = "Halted") -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"cpu": {"cores": 1}}}}},
    }


@asynccontextmanager
async def simulating(timers: HeldTimers | None = None, **settings: Any) -> AsyncIterator[Api]:
    """With timers, controllers act when the test lets them."""
    chosen = ClusterSettings(**{"controller_ms": 5.0, **settings})
    if timers is None:
        simulator = a_simulator(chosen)
    else:
        held = KubernetesRoutes(chosen, cast(Any, timers))
        simulator = Simulator(chosen, lambda _: held.handle)
    api = Api(*await simulator.start())
    try:
        yield api
    finally:
        await simulator.stop()
