"""Chromium for tests and pictures, driven by Playwright."""

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.support.external import chromium

# A busy machine may take its time.
LIMIT_MS = 60_000
_LAUNCH_MS = 120_000


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser that can resolve no names, so that it reaches only this machine."""
    program = chromium()
    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    expect.set_options(timeout=LIMIT_MS)
    with tempfile.TemporaryDirectory(prefix="batchline-chromium-") as folder, sync_playwright() as playwright:
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
            program = _without_priority(program, Path(folder))
        browser = playwright.chromium.launch(executable_path=program, args=arguments, timeout=_LAUNCH_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True)
class Visit:
    """What the pages of a context have requested, and the errors and warnings that they have reported."""

    context: BrowserContext
    requested: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def requested_elsewhere(self, url: str) -> list[str]:
        """Requests to other servers than that of `url`."""
        return [each for each in self.requested if not each.startswith((f"{url}/", "data:", "blob:"))]


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """A window of its own, with nobody's cookies. `options`: of Playwright's new_context."""
    context = browser.new_context(base_url=url, **{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(LIMIT_MS)
    visit = Visit(context)
    context.on("request", lambda request: visit.requested.append(request.url))
    context.on(
        "console",
        lambda said: visit.reported.append(said.text) if said.type in ("error", "warning") else None,
    )
    context.on("weberror", lambda error: visit.reported.append(str(error.error)))
    try:
        yield visit
    finally:
        context.close()


def _without_priority(program: Path, folder: Path) -> Path:
    """A program that starts Chromium without the right to raise its priority.

    As root, it gives itself a nice value of -8, which slows down all other tests."""
    started = folder / "chromium"
    started.write_text(f'#!/bin/sh\nexec setpriv --bounding-set=-sys_nice {shlex.quote(str(program))} "$@"\n')
    started.chmod(0o755)
    return started
