"""Takes pictures of the dashboard with Chromium, of a real server and worker with a tenant made for it.

.venv/bin/python -m docs.images.make_dashboard_png             # the four in the documents
.venv/bin/python -m docs.images.make_dashboard_png FOLDER      # every page, light and dark, wide and narrow
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect

from batchline.embedded import EmbeddedPostgres
from batchline.model import Role
from batchline.store import migrate
from tests.support.chromium import running_chromium, visiting
from tests.support.dashboard_site import Site, dashboard_site, sign_in
from tests.support.seeded_tenant import SeededTenant, seeded_tenant

Scheme = Literal["light", "dark"]
WIDE, NARROW = (1280, 900), (390, 844)
# Name, page, scheme, size.
CHOSEN: tuple[tuple[str, str, Scheme, tuple[int, int]], ...] = (
    ("dashboard", "overview", "light", WIDE),
    ("dashboard-batch", "batch", "light", WIDE),
    ("dashboard-failures", "batch-failures", "dark", (1280, 600)),
    ("dashboard-phone", "overview", "dark", NARROW),
)


def main(folder: Path | None) -> None:
    with _filled() as (site, seeded), running_chromium() as browser:
        if folder is None:
            for name, page, scheme, size in CHOSEN:
                _pictures(browser, site, seeded, {name: page}, scheme, size, Path(__file__).parent)
            return
        folder.mkdir(parents=True, exist_ok=True)
        schemes: tuple[Scheme, ...] = ("light", "dark")
        for scheme in schemes:
            for size in (WIDE, NARROW):
                named = {f"{page}-{scheme}-{size[0]}": page for page in ("sign-in", "docs", *seeded.pages)}
                _pictures(browser, site, seeded, named, scheme, size, folder, whole=True)


@contextmanager
def _filled() -> Iterator[tuple[Site, SeededTenant]]:
    with (
        tempfile.TemporaryDirectory(prefix="batchline-pictures-") as folder,
        EmbeddedPostgres.start(Path(folder, "database")) as postgres,
    ):
        migrate.up(postgres.url)
        with (
            dashboard_site(postgres.url, Path(folder)) as site,
            seeded_tenant(site, "acme", Path(folder)) as seeded,
        ):
            yield site, seeded


def _pictures(
    browser: Browser,
    site: Site,
    seeded: SeededTenant,
    named: dict[str, str],
    scheme: Scheme,
    size: tuple[int, int],
    folder: Path,
    *,
    whole: bool = False,
) -> None:
    """`named`: pages by the names of their pictures. `whole`: also what is below the window's edge."""
    window = {"width": size[0], "height": size[1]}
    with visiting(
        browser, site.server.url, viewport=window, color_scheme=scheme, reduced_motion="reduce"
    ) as visit:
        page = visit.context.new_page()
        for name, displayed in named.items():
            if displayed not in ("sign-in", "docs") and not visit.context.cookies():
                sign_in(visit.context, site.server, site.server.key(seeded.name, Role.ADMIN, "ada"))
            page.goto({"sign-in": "/ui/signin", "docs": "/docs"}.get(displayed) or seeded.pages[displayed])
            expect(page.locator(".info .title" if displayed == "docs" else "main h1")).to_be_visible()
            if whole and displayed != "docs":
                # As high as the page, so that what is fixed at the window's edge covers nothing.
                height = page.evaluate("Math.max(document.documentElement.scrollHeight, innerHeight)")
                page.set_viewport_size({"width": size[0], "height": height})
            page.screenshot(path=folder / f"{name}.png")
            page.set_viewport_size({"width": size[0], "height": size[1]})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
