"""The dashboard as users have it: `batchline serve` with its worker, and an upstream that a test scripts."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
from playwright.sync_api import BrowserContext, Page, expect

from batchline.config.settings import ServerSettings
from batchline.files.objects import Objects
from batchline.model import Role
from tests.support.server_process import served
from tests.support.serving import Server
from tests.support.worded_upstream import WordedUpstream, worded_upstream

CHAT: Final = "/v1/chat/completions"
# Each test has a tenant of its own, and all of them have one server.
_SETTINGS = """
[server]
windows = ["24h", "1h"]
allow_private_webhooks = true

[limits]
max_pending_parents = 100_000
requests_per_minute = 1_000_000
user_requests_percent = 100
cooldown_seconds = 0

[[prices]]
model = "*"
input = 0.25
output = 2.0

[[upstreams]]
name = "models"
base_url = "{url}/v1"
max_attempts = 3
# Tests hold all requests: no answer would show that there is room for more.
concurrency = 64

[[upstreams]]
name = "cluster"
base_url = "{url}"
models = []

[[operations]]
name = "vm_restart"
description = "Restart virtual machines"
upstream = "cluster"
path = "/restart/{{vm}}"
largest_batch = 50
approval = "always"
max_attempts = 1

[operations.schema]
type = "object"
required = ["vm"]

[operations.schema.properties]
vm = {{ type = "string" }}
namespace = {{ type = "string" }}
"""


@dataclass(frozen=True, slots=True)
class Site:
    server: Server
    upstream: WordedUpstream


class RestartableSite:
    """A server that stops and starts again at the same address."""

    def __init__(self, database: str, folder: Path, config: Path, *options: str) -> None:
        self._database, self._folder = database, folder
        self._options = ("--config", str(config), *options)
        self._running = ExitStack()
        self.url = ""

    def start(self) -> None:
        port = ("--port", str(urlsplit(self.url).port)) if self.url else ()
        running = self._running.enter_context(served(self._database, self._folder, *self._options, *port))
        self.url = running.url

    def stop(self) -> None:
        self._running.close()


@contextmanager
def dashboard_site(database: str, folder: Path) -> Iterator[Site]:
    with worded_upstream() as upstream:
        config = site_config(folder, upstream.url)
        with served(database, folder, "--config", str(config)) as process:
            process.wait_for_worker()
            try:
                yield Site(server_at(process.url, database, folder), upstream)
            finally:
                # Its worker waits for requests in flight.
                upstream.forget()


def site_config(folder: Path, upstream: str) -> Path:
    config = folder / "batchline.toml"
    config.write_text(_SETTINGS.format(url=upstream))
    return config


def server_at(url: str, database: str, folder: Path) -> Server:
    """Keys and clients for a server in a process of its own."""
    return Server(url, database, Objects.at(folder / "data" / "objects"), ServerSettings())


def sign_in(context: BrowserContext, server: Server, key: str) -> None:
    """Give the window the cookie that the page would get."""
    answer = context.request.post("/api/v1/session", data={"key": key}, headers={"origin": server.url})
    assert answer.status == 204, answer.text()


def overview_of(
    context: BrowserContext, server: Server, tenant: str, role: Role = Role.ADMIN, name: str = "ada"
) -> Page:
    """The overview, as a new user of the tenant sees it."""
    sign_in(context, server, server.key(tenant, role, name))
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
    return page


def created(server: Server, tenant: str, path: Path, *, key: str | None = None, **more: Any) -> str:
    """A batch over the file, from another program."""
    with server.client(tenant, key=key) as client:
        file = client.files.create(file=path, purpose="batch")
        options: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **more}
        return client.batches.create(input_file_id=file.id, **options).id


def caller(
    server: Server, tenant: str, name: str, role: Role = Role.USER, *, key: str | None = None
) -> httpx2.Client:
    """A user who calls /api/v1, with a new key if none is given."""
    client = server.http(key or server.key(tenant, role, name))
    client.base_url = f"{server.url}/api/v1"
    return client


def status_of(page: Page, status: str) -> None:
    """Wait until the page of a batch or of an action says so."""
    expect(page.locator("main .badge").first).to_have_text(re.compile(f"^{status}$"))


def confirm(page: Page, button: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=button).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
