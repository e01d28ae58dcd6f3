"""The three stages. Workers run them: `batchline worker examples.bulk_import.tasks:app`."""

import re
from datetime import timedelta

import msgspec
from pyreqwest.client import ClientBuilder

from batchline import Batchline, Context, Fail, Retry
from examples.bulk_import.entities import resolved
from examples.bulk_import.politeness import Politeness

IN_FLIGHT_PER_HOST, DELAY = 4, 0.005

app = Batchline()
client = ClientBuilder().timeout(timedelta(seconds=30)).build()
politeness = Politeness(IN_FLIGHT_PER_HOST, DELAY)


class Mention(msgspec.Struct, frozen=True):
    """What a page says: a composition, and the name of its composer as written there."""

    title: str
    composer: str


class Composition(msgspec.Struct, frozen=True):
    title: str
    composer: str


@app.operation(max_attempts=3, run_in="process", chunk=50)
def resolve(mentions: list[Mention]) -> list[Composition | Fail]:
    """Find the composer that a page means. It compares strings, so it runs in processes."""
    return [_resolved(mention) for mention in mentions]


@app.operation(max_attempts=8, timeout=120, concurrency=64, emits=[resolve])
async def scrape(url: str, ctx: Context) -> None:
    page = await fetch(url)
    found = re.search(r"<h1>(?P<title>.+?)</h1>.*<p>by (?P<composer>.+?)</p>", page, re.DOTALL)
    if found is None:
        raise Fail("the page has no title and composer", code="not_a_composition")
    await ctx.emit(resolve, Mention(found["title"], found["composer"]))


@app.operation(emits=[scrape])
async def read_manifest(url: str, ctx: Context) -> int:
    """The number of pages that a part of the manifest lists."""
    pages = (await fetch(url)).split()
    for page in pages:
        await ctx.emit(scrape, page, key=page)
    return len(pages)


async def fetch(url: str) -> str:
    async with politeness.request_to(url):
        response = await client.get(url).build().send()
        if response.status in (429, 503):
            raise Retry(
                f"the site answered {response.status}", after=float(response.headers.get("retry-after", 1))
            )
        if response.status != 200:
            raise Fail(f"the site answered {response.status}", code=f"http_{response.status}")
        return await response.text()


def _resolved(mention: Mention) -> Composition | Fail:
    composer = resolved(mention.composer)
    if composer is None:
        return Fail(f"no composer is called {mention.composer!r}", code="unknown_composer")
    return Composition(mention.title, composer)
