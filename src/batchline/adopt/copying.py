"""Copies old files, lines and finished requests, in steps that each commit.

Copying is additive and online: old programs go on writing meanwhile. What they write to places that were read
already is found by the next pass, and the last pass runs at the cutover, when nobody writes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from batchline.adopt.outcomes import adopted_result
from batchline.store.adoption import copies, transactions
from batchline.store.adoption.records import AdoptedResult, FinishedRequest
from batchline.store.adoption.source import Source
from batchline.store.session import Session, StoreConnection

LINES_PER_STEP = 10_000
# Pages of old requests per step: fewer while their bodies are large, so that a step takes little memory.
_MIN_PAGES, _MAX_PAGES = 4, 1024
_SMALL_STEP, _LARGE_STEP = 4 * 2**20, 32 * 2**20

Transaction = Callable[[], AbstractAsyncContextManager[StoreConnection]]


class Steps(Protocol):
    """Called after every step, with its name and what it did, so that tests can stop there."""

    async def reached(self, point: str, amount: int) -> None: ...


class NoSteps:
    async def reached(self, point: str, amount: int) -> None:
        return None


def committing(session: Session) -> Transaction:
    """Each step commits."""
    return lambda: transactions.step(session, phases=transactions.COPYING)


def within(connection: StoreConnection) -> Transaction:
    """All steps belong to the transaction of the caller."""

    @asynccontextmanager
    async def open_transaction() -> AsyncIterator[StoreConnection]:
        yield connection

    return open_transaction


async def copy_files(transaction: Transaction, steps: Steps) -> int:
    """Copy the lines of files that are new or have changed. Returns the number of lines."""
    async with transaction() as connection:
        changed = await copies.changed_files(connection)
    for file_no in changed:
        async with transaction() as connection:
            await copies.forget_file(connection, file_no)
        await steps.reached("file forgotten", 1)
    async with transaction() as connection:
        new = await copies.new_files(connection)
    for file_id in new:
        async with transaction() as connection:
            numbered = await copies.number_file(connection, file_id)
        await steps.reached("lines numbered", numbered)
    copied = await _copy_lines(transaction, steps)
    async with transaction() as connection:
        added = await copies.add_batches(connection)
    await steps.reached("batches found", added)
    return copied


async def _copy_lines(transaction: Transaction, steps: Steps) -> int:
    total = 0
    while True:
        async with transaction() as connection:
            files = await copies.uncopied_files(connection)
            if not files:
                return total
            until = min(files[0].copied + LINES_PER_STEP, files[0].line_count)
            lines = await copies.copy_lines(connection, files[0], until)
            await transactions.note(connection, lines=lines)
        total += lines
        await steps.reached("lines copied", lines)


async def copy_results(session: Session, source: Source, steps: Steps) -> int:
    """Copy the finished requests that have no result yet, from where an earlier command stopped."""
    state = await transactions.find(session)
    page, span, total = state.next_page if state else 0, _MIN_PAGES, 0
    async with transactions.step(session, phases=transactions.COPYING) as connection:
        if page == 0:
            await copies.begin_pass(connection)
            await copies.drop_stale(connection, await copies.changed_since(connection))
        # Pages that are added meanwhile are left to the next pass: writers may be as fast as we are.
        end = await copies.pages(connection, source)
    while page < end:
        async with transactions.step(session, phases=transactions.COPYING) as connection:
            async with transactions.by_key(connection):
                requests = await copies.finished_requests(connection, first=page, beyond=page + span)
            results = await _composed(requests)
            added = await copies.add_results(connection, results)
            page += span
            await transactions.note(connection, results=added, next_page=page)
        total += added
        span = next_span(span, sum(len(one.output) for one in results))
        await steps.reached("results copied", added)
    async with transactions.step(session, phases=transactions.COPYING) as connection:
        await copies.end_pass(connection)
    return total


async def copy_rest(connection: StoreConnection) -> int:
    """Copy what was written since the last pass: at the cutover, when nobody writes and it has just ended."""
    since = await copies.changed_since(connection)
    await copies.drop_stale(connection, since)
    requests = await copies.finished_requests(connection, transactions=since)
    await transactions.read_whole(connection)
    return await copies.add_results(connection, await _composed(requests))


def next_span(span: int, size: int) -> int:
    """The pages of the next step, after one whose results had this size."""
    if size > _LARGE_STEP:
        return max(_MIN_PAGES, span // 2)
    return min(_MAX_PAGES, span * 2) if size < _SMALL_STEP else span


async def _composed(requests: list[FinishedRequest]) -> list[AdoptedResult]:
    # Composing takes 10 to 20 µs per line. A thread keeps the event loop free to notice a signal.
    return await asyncio.to_thread(lambda: [adopted_result(request) for request in requests])
