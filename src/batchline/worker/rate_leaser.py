"""Leases parts of budgets per minute from the database, while requests want them.

One statement is for all budgets that want a lease. It holds its row locks for one commit, and no request is
sent meanwhile on its behalf. A worker that sends nothing asks for nothing.
"""

import asyncio
from functools import partial

import structlog

from batchline.store import rate_budgets
from batchline.store.session import Session, StatementRefused, StoreUnavailable
from batchline.upstreams.budget import Budget, BudgetLease, granted
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.pause import Pause
from batchline.worker.service import Service

# Between two statements, so that each is for many requests.
_GATHER = 0.01

_log = structlog.get_logger("batchline.rates")


class RateLeaser(Service):
    name = "rate leaser"

    def __init__(self, session: Session, budgets: RateBudgets) -> None:
        super().__init__()
        self._session = session
        self._budgets = budgets
        budgets.on_wanted = self.wake

    def repair(self) -> None:
        """An interrupted statement may have leased something. It is lost."""
        for budget in self._budgets.all():
            budget.lost()
        self.wake()

    async def run(self) -> None:
        pause = Pause()
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._lease()
                pause.reset()
                await asyncio.sleep(_GATHER)
            except (StoreUnavailable, StatementRefused) as error:
                _log.warning("cannot lease a part of the budgets", reason=str(error))
                await pause.wait()
                self.wake()
            self._rest()

    async def _lease(self) -> None:
        """For all budgets that want some."""
        wanted = [(each, lease) for each in self._budgets.all() if (lease := each.next_lease()) is not None]
        if not wanted:
            return
        claims = [claim for _, lease in wanted for claim in lease.claims]
        try:
            waits = dict(zip(claims, await rate_budgets.lease(self._session, claims), strict=True))
        except BaseException:
            for budget, _ in wanted:
                budget.lost()
            raise
        for budget, lease in wanted:
            begin(budget, *granted(lease, [waits[claim] for claim in lease.claims]))


def begin(budget: Budget, lease: BudgetLease, seconds: float) -> None:
    """Let a lease begin after so many seconds. They count from now on: later than the database's answer."""
    budget.awaits(seconds)
    if seconds:
        asyncio.get_running_loop().call_later(seconds, partial(budget.begin, lease))
    else:
        budget.begin(lease)
