"""Opens relays that only collect, for chunks of upstreams whose batch API the settings do not use any more.

Another worker may still use it, with earlier settings, and leave its chunks later. So it looks again and
again, with one small statement.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from batchline.store.provider_chunks import OpenChunks
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.relay.relay import Relay, RelayScope
from batchline.worker.relay.relays import Relays
from batchline.worker.service import Service

# Seldom: an idle worker asks the database for little, and `doctor` says what waits meanwhile.
_LOOK_EVERY = 600.0

_log = structlog.get_logger("batchline.relay")


class Collectors(Service):
    """`open_relay` makes a relay; `start` starts it."""

    name = "chunk collectors"

    def __init__(
        self,
        session: Session,
        scope: Scope,
        relays: Relays,
        open_relay: Callable[[RelayScope], Relay],
        start: Callable[[Relay], None],
    ) -> None:
        super().__init__()
        self._session = session
        self._scope = scope
        self._relays = relays
        self._open_relay = open_relay
        self._start = start
        self._warned: set[OpenChunks] = set()

    async def run(self) -> None:
        while True:
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._woken.wait()
            self._woken.clear()
            self._rest()

    async def look(self) -> None:
        try:
            for chunks in await self._relays.unserved(self._session, self._scope):
                self._serve(chunks)
        except StoreUnavailable as error:
            _log.warning("cannot look for chunks", reason=str(error))

    def _serve(self, chunks: OpenChunks) -> None:
        of = self._relays.collector(chunks)
        if of is None:
            self._warn(chunks)
        elif not any(relay.of is of for relay in self._relays):
            _log.info("chunks are collected that were submitted before", key=chunks.key, chunks=chunks.chunks)
            relay = self._open_relay(of)
            self._relays.add(relay)
            self._start(relay)

    def _warn(self, chunks: OpenChunks) -> None:
        if chunks not in self._warned:
            self._warned.add(chunks)
            _log.warning(
                "chunks wait for a worker that serves their upstream: name one with this base_url again",
                key=chunks.key,
                base_url=chunks.target.base_url,
                chunks=chunks.chunks,
                lines=chunks.lines,
            )
