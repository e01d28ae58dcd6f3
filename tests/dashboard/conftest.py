"""Chromium, a real server, and the page of an admin of a tenant of its own.

Every test also proves that no request left the host, that the content security policy blocked nothing, and
that no script failed.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from batchline.model import ids
from tests.support.chromium import running_chromium, visiting
from tests.support.dashboard_site import overview_of
from tests.support.operations_client import REGISTRY, SETTINGS
from tests.support.scenes import database
from tests.support.serving import Server, serving

# Chromium reports every answer of 400 and more, and every lost connection, as an error.
_EXPECTED = ("Failed to load resource:",)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """It ends with the module: while its loop runs in this thread, no async test can."""
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without a worker: batches stay as a test has left them."""
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


@pytest.fixture
def tenant() -> str:
    return ids.new_id().hex


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """A wide, light window that nobody is signed in with."""
    with visiting(browser, server.url) as visit:
        yield visit.context
        # Answers to what the page asks for while it closes do not matter.
        reported = [each for each in visit.reported if not each.startswith(_EXPECTED)]
    assert reported == []
    assert visit.requested_elsewhere(server.url) == []


@pytest.fixture
def page(context: BrowserContext, server: Server, tenant: str) -> Page:
    """Signed in as an admin, on the overview."""
    return overview_of(context, server, tenant)
