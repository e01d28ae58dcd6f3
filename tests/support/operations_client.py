"""A server's settings for governed operations, and callers of /api/v1."""

from dataclasses import replace
from typing import Any

import httpx2

from batchline.config.settings import ServerSettings
from batchline.governance.approvals import APPROVE
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.model import Role, ids
from tests.support.governance import GENEROUS, RESIZE, WIPE, items
from tests.support.serving import NOWHERE, Server

VMS = tuple(
    Operation(f"vm_{name}", request=None, executor="none", largest_batch=largest, approval=approval)
    for name, largest, approval in (
        ("create", 10, "always"),
        ("delete", 10, "always"),
        ("start", 50, "never"),
        ("stop", 50, "never"),
        ("restart", 50, "never"),
    )
)
REGISTRY = Registry((RESIZE, WIPE, APPROVE, *VMS))
SETTINGS = ServerSettings(
    upstreams=(NOWHERE,), sessions=8, streams=4, limits=replace(GENEROUS, requests_per_minute=1_000_000)
)


class Tenant:
    """A tenant of its own for each test, with callers who are users of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = ids.new_id().hex

    def caller(self, name: str, role: Role = Role.USER) -> httpx2.Client:
        client = self.server.http(self.server.key(self.name, role, name))
        client.base_url = f"{self.server.url}/api/v1"
        return client


def submit(client: httpx2.Client, what: Any = 3, operation: str = "resize", **more: Any) -> dict[str, Any]:
    answer = client.post(
        f"/operations/{operation}/batches", json={"items": items(what) if type(what) is int else what, **more}
    )
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def refused(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert {"message", "type", "param", "code"} <= set(answer.json()["error"])
    return dict(answer.json()["error"])
