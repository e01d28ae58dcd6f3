"""An HTTP client that acts as a page of the dashboard: keeps the cookie, and sends what a page sends."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from batchline.model import Role
from tests.support.openai_client import KEPT_IDLE
from tests.support.serving import Server

DASHBOARD = "/api/v1/dashboard"


class PageClient:
    """Signed in with a key of a tenant. Close it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx2.Client(
            base_url=server.url, timeout=60, limits=httpx2.Limits(keepalive_expiry=KEPT_IDLE)
        )

    def sign_in(self, key: str, **headers: str) -> httpx2.Response:
        return self.http.post(
            "/api/v1/session", json={"key": key}, headers={"origin": self.server.url, **headers}
        )

    def session(self) -> dict[str, Any]:
        answer = self.http.get("/api/v1/session")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """A request as the page sends it."""
        headers = {"origin": self.server.url, "x-batchline-csrf": self.session()["csrf"]}
        return self.http.request(method, path, headers=headers, **more)

    def get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(f"{DASHBOARD}/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def signed_in(
    server: Server, tenant: str, role: Role = Role.ADMIN, name: str | None = None
) -> Iterator[PageClient]:
    """The client of a new user."""
    client = PageClient(server)
    try:
        answer = client.sign_in(server.key(tenant, role, name))
        assert answer.status_code == 204, answer.text
        yield client
    finally:
        client.http.close()


class Events:
    """The events of an open stream, one by one."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.iter_lines()

    def next(self) -> tuple[str, Any]:
        """The next event; comments are passed over. Raises StopIteration when the stream has ended."""
        name, data = "", None
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
            elif not line and name:
                return name, data
        raise StopIteration

    def until(self, name: str, **fields: Any) -> Any:
        """The first event of this kind with these fields."""
        while True:
            kind, data = self.next()
            if kind == name and all(data.get(key) == value for key, value in fields.items()):
                return data


@contextmanager
def listening(http: httpx2.Client, watch: str | None = None) -> Iterator[Events]:
    params = {} if watch is None else {"watch": watch}
    with http.stream("GET", f"{DASHBOARD}/events", params=params) as answer:
        assert answer.status_code == 200, answer.read()
        yield Events(answer)
