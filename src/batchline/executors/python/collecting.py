"""Items of operations that collect: their bodies are the results of another stage.

A collecting item names results by their line numbers, or all of its stage. They are read just before it
runs, so nothing is stored twice, and a retry reads them again.
"""

import asyncio
from typing import Protocol

import msgspec
from msgspec.structs import replace

from batchline.batches.output import failed_line, response_body
from batchline.model import Deferred, Failed, Item, Verdict
from batchline.store.python_results import TooMuch, collected
from batchline.store.session import Session, StoreUnavailable

# What one item may collect.
MAX_COLLECTED = 64 * 2**20
_UNAVAILABLE_DELAY = 1.0

_numbers = msgspec.json.Decoder(list[int] | None).decode


class Collector(Protocol):
    async def collect(self, item: Item, source: str) -> Item | Verdict:
        """The item with the results of the stage `source` as its body; or why that is not possible."""
        ...

    async def close(self) -> None: ...


class StoredResults:
    """Reads results from the database, one item at a time."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, "collect")

    async def collect(self, item: Item, source: str) -> Item | Verdict:
        numbers = _numbers(item.body)
        try:
            outputs = await collected(
                self._session, item.claim.batch_id, source, numbers, max_bytes=MAX_COLLECTED
            )
        except StoreUnavailable:
            return Deferred(item, _UNAVAILABLE_DELAY)
        except TooMuch:
            message = (
                f"The results to collect exceed {MAX_COLLECTED} bytes. Collect by key, or read"
                " batch.results(stage=…) when the batch has ended."
            )
            return Failed(item, failed_line(item, "too_large", message))
        # Decoding many lines takes a while.
        return replace(item, body=await asyncio.to_thread(_joined, outputs))

    async def close(self) -> None:
        await self._session.close()


def _joined(outputs: list[bytes]) -> bytes:
    return b"[" + b",".join(map(response_body, outputs)) + b"]"
