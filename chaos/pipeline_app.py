"""An app with three stages, whose handlers succeed, fail or emit as each item's text says.

Workers run it by `batchline worker chaos.pipeline_app:app`. Its name determines an item's outcome and what it
emits, so the checker needs no other source. `plan` runs in the event loop, `fetch` in threads, and `store`
gets lists.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from batchline import Batchline, Context, Fail, Retry

STAGES = ("plan", "fetch", "store")
REFUSED = "refused"


class StageItem(NamedTuple):
    stage: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.stage}:{self.text}"

    @property
    def value(self) -> int:
        """The result, if it has one."""
        return crc32(self.text.encode())

    @property
    def refused(self) -> bool:
        return self.value % 11 == 0

    @property
    def retried(self) -> bool:
        """Its first attempt fails, after it has emitted."""
        return self.value % 7 == 0

    @property
    def seconds(self) -> float:
        return self.value % 50 / 1000

    def children(self) -> Iterator["StageItem"]:
        """What it emits."""
        if self.stage == "plan":
            for number in range(1 + self.value % 3):
                yield StageItem("fetch", f"{self.text}/{number}")
        elif self.stage == "fetch":
            yield StageItem("store", f"{self.text}/end")


def _error(item: StageItem, ctx: Context) -> Fail | Retry | None:
    if item.retried and ctx.attempt == 1:
        return Retry("busy", after=0.2)
    return Fail("no such page", code=REFUSED) if item.refused else None


def pipeline_app(database: str | None = None, data_dir: Path | None = None) -> Batchline:
    app = Batchline(database, data_dir=data_dir)

    @app.operation(chunk=8, max_attempts=20)
    async def store(texts: list[str], ctx: Context) -> list[object]:
        items = [StageItem("store", text) for text in texts]
        await asyncio.sleep(max(item.seconds for item in items))
        return [_error(item, each) or item.value for item, each in zip(items, ctx.items, strict=True)]

    @app.operation(emits=[store], max_attempts=20)
    def fetch(text: str, ctx: Context) -> int:
        item = StageItem("fetch", text)
        for child in item.children():
            ctx.emit(store, child.text, key=child.key)
        time.sleep(item.seconds)
        if error := _error(item, ctx):
            raise error
        return item.value

    @app.operation(emits=[fetch], max_attempts=20)
    async def plan(text: str, ctx: Context) -> int:
        item = StageItem("plan", text)
        for child in item.children():
            await ctx.emit(fetch, child.text, key=child.key)
        await asyncio.sleep(item.seconds)
        if error := _error(item, ctx):
            raise error
        return item.value

    return app


app = pipeline_app()
