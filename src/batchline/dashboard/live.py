"""Live updates for browsers: one poller per server process reads for all of them, and only while somebody
listens.

Readers of the same tenant and with the same rights share what is read. A stream keeps only the newest
state of each thing that has changed, so a slow reader takes no more memory, and gets what is true now. The
poller waits longer when the database is slow: it never takes more than a tenth of the time of one connection.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

import msgspec
import structlog

from batchline import __version__
from batchline.dashboard.figures import BatchFigures, figures_of
from batchline.dashboard.overview import OverviewReader, without_series
from batchline.dashboard.upstreams import UpstreamDirectory
from batchline.model import ids
from batchline.model.bulk_action import BulkAction
from batchline.store import browser_sessions, bulk_actions, listing
from batchline.store.errors import StoreUnavailable
from batchline.store.listing import BatchFilters, BatchViewer
from batchline.store.pool import Sessions
from batchline.store.session import Session

MAX_WATCHED = 100
# Streams of one user, of one tenant, and of all tenants.
MAX_PER_USER = 8
MAX_PER_TENANT = 64
MAX_STREAMS = 256
# The newest batches are watched for everybody.
_NEWEST = 50
_NEWEST_ACTIONS = 20
# The share of time that the poller may use.
_SHARE = 10.0
_CHECK_CREDENTIALS_EVERY = 5.0
_COMMENT_EVERY = 15.0
# What changes with the clock alone is sent only together with something else.
_MOVING = ("rate_per_s", "eta_s", "forecast")
# What is sent with every change: a page may have read a state in between that no poll has seen, such as a
# retry that was over soon.
_STATE = ("status", "counts", "pause", "ended_at")

_log = structlog.get_logger("batchline.dashboard")


class TooManyStreams(Exception):
    """The user, or all users together, have too many open streams. The message is for a person."""


class Audience(msgspec.Struct, frozen=True):
    """Who sees the same."""

    viewer: BatchViewer
    # Also the processes.
    workers: bool


class LiveStream:
    """The events for one browser: what has changed and was not sent yet."""

    def __init__(
        self, audience: Audience, user: str, watched: Sequence[UUID], credential: bytes | None
    ) -> None:
        self.audience = audience
        self.user = user
        self.watched = tuple(watched[:MAX_WATCHED])
        self.watched_ids = frozenset(ids.show(ids.BATCH, each) for each in self.watched)
        # The hash that authenticates it; None: the server has no keys.
        self.credential = credential
        # It has got an overview.
        self.informed = False
        # By the kind of event and the id of its object.
        self._changed: dict[tuple[str, str], dict[str, Any]] = {}
        self._news = asyncio.Event()
        self._ended = False

    def tell(self, event: str, fields: dict[str, Any]) -> None:
        """Send these fields, together with others of the same object that were not sent yet."""
        self._changed.setdefault((event, fields.get("id", "")), {}).update(fields)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def events(self, pause: float) -> AsyncIterator[bytes]:
        """Server-sent events until the end, in bursts that are `pause` seconds apart."""
        number = 0
        yield _event("hello", {"version": __version__}, number)
        while not self._ended:
            try:
                async with asyncio.timeout(_COMMENT_EVERY):
                    await self._news.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if self._ended:
                return
            self._news.clear()
            changed, self._changed = self._changed, {}
            for (name, _), fields in changed.items():
                number += 1
                yield _event(name, fields, number)
            await asyncio.sleep(pause)


class _Known:
    """What an audience has been told."""

    def __init__(self) -> None:
        self.batches: dict[str, BatchFigures] = {}
        self.actions: dict[UUID, dict[str, Any]] = {}
        self.overview: bytes | None = None
        # The same as it was sent.
        self.fields: dict[str, Any] = {}


class Live:
    """The streams of one server, and the poller that feeds them."""

    def __init__(
        self,
        sessions: Sessions,
        overviews: OverviewReader,
        upstreams: UpstreamDirectory,
        display_action: Callable[[BulkAction], dict[str, Any]],
        *,
        pause: float = 1.0,
        check_every: float = _CHECK_CREDENTIALS_EVERY,
    ) -> None:
        self._sessions = sessions
        self._overviews = overviews
        self._upstreams = upstreams
        self._display_action = display_action
        self._pause = pause
        self._check_every = check_every
        self._streams: set[LiveStream] = set()
        self._known: dict[Audience, _Known] = {}
        self._polling: asyncio.Task[None] | None = None
        self._checked_at = 0.0
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # How often the database was read, for tests.
        self.polls = 0

    @asynccontextmanager
    async def stream(self, stream: LiveStream) -> AsyncIterator[AsyncIterator[bytes]]:
        """Listen. Raises TooManyStreams."""
        tenant = stream.audience.viewer.tenant
        users = [each.user for each in self._streams if each.audience.viewer.tenant == tenant]
        of_tenant = len(users) >= MAX_PER_TENANT
        if of_tenant or users.count(stream.user) >= MAX_PER_USER or len(self._streams) >= MAX_STREAMS:
            raise TooManyStreams("Too many pages with live updates are open. Close some of them.")
        self._streams.add(stream)
        self._loop = asyncio.get_running_loop()
        known = self._known.get(stream.audience)
        if known is not None and known.overview is not None:
            # What the others know, without another read.
            stream.tell("overview", known.fields)
            stream.informed = True
        if self._stopped:
            stream.end()
        elif self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            yield stream.events(self._pause / 2)
        finally:
            self._streams.discard(stream)
            if not self._streams and self._polling is not None:
                await self._stop_polling()

    def stop(self) -> None:
        """The server stops: end all streams, so that it need not wait for them. From any thread."""
        self._stopped = True
        if self._streams and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for stream in self._streams:
            stream.end()

    async def _stop_polling(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
        self._known.clear()

    async def _poll(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with self._sessions.one() as session:
                    await self._read(session)
            except StoreUnavailable as error:
                _log.warning("cannot read for live updates", reason=str(error))
            took = time.monotonic() - began
            await asyncio.sleep(max(self._pause, _SHARE * took))

    async def _read(self, session: Session) -> None:
        self.polls += 1
        await self._check_credentials(session)
        audiences = {stream.audience for stream in self._streams}
        self._known = {each: self._known.get(each) or _Known() for each in audiences}
        for audience, known in self._known.items():
            try:
                await self._tell(session, audience, known)
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001
                # What is wrong with the data of one tenant must not end the updates of all others.
                _log.exception("cannot read for live updates", tenant=audience.viewer.tenant)

    async def _check_credentials(self, session: Session) -> None:
        """End streams whose session has ended or whose key is revoked, by one statement for all of them."""
        if time.monotonic() - self._checked_at < self._check_every:
            return
        self._checked_at = time.monotonic()
        hashes = {each.credential for each in self._streams if each.credential is not None}
        if not hashes:
            return
        good = await browser_sessions.still_good(session, hashes)
        for stream in self._streams:
            if stream.credential is not None and stream.credential not in good:
                stream.end()

    async def _tell(self, session: Session, audience: Audience, known: _Known) -> None:
        """Read what an audience sees, and tell its streams what has changed."""
        streams = [each for each in self._streams if each.audience == audience]
        overview = await self._overviews.read(session, audience.viewer, workers=audience.workers)
        found = await self._batches(session, audience.viewer, streams, [each.id for each in overview.open])
        for batch_id, figures in found.items():
            before = known.batches.get(batch_id)
            changed = _changes(before, figures) if before is not None else {}
            for stream in streams:
                if changed:
                    stream.tell("batch", changed)
                elif before is None and (known.overview is not None or figures.id in stream.watched_ids):
                    # Also to the first stream: its page may have read a batch before this poll did.
                    stream.tell("batch", msgspec.to_builtins(figures))
        known.batches = found
        await self._tell_actions(session, audience, known, streams)
        fields = without_series(overview)
        # Without the time of reading.
        _, *load = fields["in_flight_point"]
        encoded = msgspec.json.encode(fields | {"now": None, "in_flight_point": load})
        for stream in streams:
            if encoded != known.overview or not stream.informed:
                stream.tell("overview", fields)
                stream.informed = True
        known.overview, known.fields = encoded, fields

    async def _tell_actions(
        self, session: Session, audience: Audience, known: _Known, streams: Sequence[LiveStream]
    ) -> None:
        """The newest actions on many batches that have changed. Users get their own."""
        viewer = audience.viewer
        newest = await bulk_actions.page(session, viewer.tenant, limit=_NEWEST_ACTIONS, actor=viewer.user)
        found = {each.id: self._display_action(each) for each in newest}
        for action_id, fields in found.items():
            if known.actions.get(action_id) != fields:
                for stream in streams:
                    stream.tell("action", fields)
        known.actions = found

    async def _batches(
        self, session: Session, viewer: BatchViewer, streams: Sequence[LiveStream], displayed: Sequence[str]
    ) -> dict[str, BatchFigures]:
        newest = await listing.page(session, viewer, BatchFilters(), limit=_NEWEST)
        wanted = {each.id for each in newest.rows}
        wanted |= {batch_id for stream in streams for batch_id in stream.watched}
        wanted |= {found for each in displayed if (found := ids.read(ids.BATCH, each)) is not None}
        summaries = await listing.summaries(session, viewer, sorted(wanted))
        rows = (figures_of(each, self._upstreams.of_batch) for each in summaries)
        return {row.id: row for row in rows}


def _changes(before: BatchFigures, now: BatchFigures) -> dict[str, Any]:
    """The fields that differ, the id and the state; empty if none differs."""
    names = [
        name
        for name in BatchFigures.__struct_fields__
        if name not in _MOVING and getattr(before, name) != getattr(now, name)
    ]
    if not names:
        return {}
    return {name: msgspec.to_builtins(getattr(now, name)) for name in ("id", *_STATE, *names, *_MOVING)}


def _event(name: str, fields: dict[str, Any], number: int) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), number, msgspec.json.encode(fields))
