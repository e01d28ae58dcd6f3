"""A claimer that is paused while its claim fails: nothing is left to wait for."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from batchline.model import Claim, Item
from batchline.store import spans
from batchline.store.session import StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.claimer import Claimer
from batchline.worker.context import ProducerContext

PATIENCE = 60.0


class Wanting:
    """An intake that wants five lines."""

    def __len__(self) -> int:
        return 0

    async def needs_refill(self) -> None:
        return

    def wanted(self) -> int:
        return 5

    def mark_full(self) -> None:
        return

    def room_for(self, count: int) -> int | None:
        return None if count else 0

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        return


def a_context() -> ProducerContext:
    lease = SimpleNamespace(lost=False, now=lambda: 0.0, worker=object())
    return cast(
        ProducerContext,
        SimpleNamespace(
            lease=lease,
            session=None,
            reconciler=SimpleNamespace(claim_lock=asyncio.Lock(), wake=lambda: None),
            announced=SimpleNamespace(taken=None),
            budget=SimpleNamespace(allowed=lambda wanted: wanted),
        ),
    )


@pytest.mark.parametrize("repaired", [False, True], ids=["a restart of the database", "an unexpected error"])
async def test_a_claimer_that_is_paused_while_its_claim_fails_becomes_idle(
    monkeypatch: pytest.MonkeyPatch, *, repaired: bool
) -> None:
    requested, fails = asyncio.Event(), asyncio.Event()

    async def claim(*_: object) -> list[Claim]:
        requested.set()
        await fails.wait()
        raise RuntimeError("a defect") if repaired else StoreUnavailable("the database restarts")

    monkeypatch.setattr(spans, "claim", claim)
    ended: list[None] = []
    claimer = Claimer(a_context(), Scope, Wanting(), lambda: ended.append(None))
    running = asyncio.create_task(claimer.run())
    async with asyncio.timeout(PATIENCE):
        await requested.wait()
        claimer.pause()
        fails.set()
        if repaired:
            await asyncio.wait([running])
            assert isinstance(running.exception(), RuntimeError)
            claimer.repair()
            running = asyncio.create_task(claimer.run())
        await claimer.idle.wait()
    assert ended == [None], "its group is told"
    running.cancel()
    await asyncio.wait([running])
