"""All budgets per minute of a worker: which of them a request counts in, and how many tokens it may use.

A request waits for its narrowest budget first, such as that of its tenant, and for that of all requests last.
"""

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from batchline.config.settings import BudgetSettings, ServerSettings, UpstreamSettings
from batchline.model import Item, Spending
from batchline.model.rate_budget import EACH_TENANT, BudgetScope, RateBudget
from batchline.model.spending import largest_usage
from batchline.secrets.addresses import public_url
from batchline.upstreams import urls
from batchline.upstreams.budget import Budget, RequestCost
from batchline.upstreams.limit_headers import HeaderReader, provider_rates
from batchline.upstreams.view import LimitingBudget

# Combinations of upstream, model and tenant that are remembered.
_MAX_KNOWN = 10_000
# How much one answer counts for the estimates of later requests.
_WEIGHT = 1 / 16
_MAX_MODELS = 1_000
# Estimates are corrected to no more than this part of the largest use, and no less.
_MAX_PART, _MIN_PART = 4.0, 0.001


class RateBudgets:
    """`estimates` says how the tokens of a request are estimated."""

    def __init__(
        self,
        budgets: Sequence[RateBudget] = (),
        estimates: Spending | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = _merged(budgets)
        self._estimates = estimates or Spending()
        self._clock = clock
        self._by_scope: dict[BudgetScope, Budget] = {}
        self._found: dict[tuple[str, str, str], tuple[Budget, ...]] = {}
        # What requests for a model have used, as a part of the largest use.
        self._parts: dict[str, float] = {}
        self._closed = False
        # Called when a lease is wanted.
        self.on_wanted: Callable[[], None] = lambda: None
        self.of_tenants = any(each.scope.tenant is not None for each in budgets)
        self._watchers: list[Callable[[Item], None]] = []

    def __bool__(self) -> bool:
        return bool(self._settings)

    def all(self) -> list[Budget]:
        """Those that were used."""
        return list(self._by_scope.values())

    def of(self, upstream: str, model: str, tenant: str) -> tuple[Budget, ...]:
        """Those that a request counts in, the narrowest first."""
        kind = (upstream, model, tenant)
        found = self._found.get(kind)
        if found is None:
            if len(self._found) >= _MAX_KNOWN:
                self._found.clear()
            found = self._found[kind] = self._find(*kind)
        return found

    def watch(self, passed: Callable[[Item], None]) -> None:
        """Call back with each item that has got its part of its tenant's budgets."""
        self._watchers.append(passed)

    def unwatch(self, passed: Callable[[Item], None]) -> None:
        self._watchers.remove(passed)

    def passed(self, item: Item) -> None:
        for passed in tuple(self._watchers):
            passed(item)

    def permit(self, item: Item) -> "Permit":
        return Permit(self, item)

    def largest(self, item: Item) -> int:
        """What the request may use, in tokens. A poll of a task uses none."""
        if item.claim.task_id is not None:
            return 0
        usage = largest_usage(self._estimates, item.claim.url, item.body)
        return usage.input_tokens + usage.output_tokens

    def estimate(self, model: str, largest: int) -> int:
        """What such a request uses, judged by others for this model."""
        return math.ceil(largest * self._parts.get(model, 1.0))

    def learn(self, model: str, largest: int, tokens: int) -> None:
        """A request has used so many tokens."""
        if model not in self._parts and len(self._parts) >= _MAX_MODELS:
            return
        part = max(_MIN_PART, min(tokens / max(largest, 1), _MAX_PART))
        # The first answer says more than the largest use.
        before = self._parts.get(model, part)
        self._parts[model] = before + (part - before) * _WEIGHT

    def limiting(self, upstream: str) -> LimitingBudget | None:
        """The budget that most requests to an upstream wait for; None: none wait."""
        waiting = [each for each in self._by_scope.values() if each.waiting and each.sends_to(upstream)]
        if not waiting:
            return None
        limiting = max(waiting, key=lambda each: each.waiting)
        budget = limiting.budget
        return LimitingBudget(budget.requests, budget.tokens, limiting.waiting, limiting.begins_in)

    def close(self) -> None:
        """The worker stops: no request waits any more."""
        self._closed = True
        for budget in self._by_scope.values():
            budget.close()

    def _find(self, upstream: str, model: str, tenant: str) -> tuple[Budget, ...]:
        applying = [each for each in self._settings if each.scope.applies(upstream, model, tenant)]
        own = {_without_tenant(each.scope) for each in applying if each.scope.tenant == tenant}
        chosen = [
            each
            for each in applying
            if each.scope.tenant != EACH_TENANT or _without_tenant(each.scope) not in own
        ]
        return tuple(self._budget(each, tenant) for each in sorted(chosen, key=_width))

    def _budget(self, settings: RateBudget, tenant: str) -> Budget:
        scope = settings.scope
        if scope.tenant == EACH_TENANT:
            scope = msgspec.structs.replace(scope, tenant=tenant)
        budget = self._by_scope.get(scope)
        if budget is None:
            of_scope = msgspec.structs.replace(settings, scope=scope)
            budget = self._by_scope[scope] = Budget(of_scope, self._clock, lambda: self.on_wanted())
            if self._closed:
                budget.close()
        return budget


class Permit:
    """That of one request: amounts of all budgets that it counts in, from before it is sent to its end."""

    def __init__(self, budgets: RateBudgets, item: Item) -> None:
        self._budgets = budgets
        self._item = item
        # Set for a request that was sent, though its item is given back.
        self.sent = False
        # Its tokens at most; 0: no budget counts them.
        self._largest = 0
        self._taken: list[tuple[Budget, RequestCost]] = []
        # The request was sent, also if it was no attempt.
        self.sent = False

    async def acquire(self, upstream: str, fence: Callable[[], object | None]) -> bool:
        """Wait until the request may be sent. False: do not send it, because the worker stops, or has lost
        its lease meanwhile, so that another worker may be sending it."""
        claim = self._item.claim
        budgets = self._budgets.of(upstream, claim.model, claim.tenant)
        if any(budget.tokens is not None for budget in budgets):
            self._largest = self._budgets.largest(self._item)
        of_tenant = sum(budget.budget.scope.tenant is not None for budget in budgets)
        sender = fence()
        try:
            for budget in budgets:
                cost = await budget.acquire(self._quote)
                if cost is None:
                    self.give_back()
                    return False
                self._taken.append((budget, cost))
                if len(self._taken) == of_tenant:
                    self._budgets.passed(self._item)
        except BaseException:
            self.give_back()
            raise
        if budgets and (sender is None or fence() != sender):
            self.give_back()
            return False
        return True

    def give_back(self) -> None:
        """The request was not sent."""
        while self._taken:
            budget, cost = self._taken.pop()
            budget.give_back(cost)

    def used(self, tokens: int) -> None:
        """The answer says how many tokens the request has used."""
        if not self._largest:
            return
        if tokens:
            self._budgets.learn(self._item.claim.model, self._largest, tokens)
        for budget, cost in self._taken:
            budget.correct(cost.tokens - tokens)

    def _quote(self) -> RequestCost:
        return RequestCost(self._budgets.estimate(self._item.claim.model, self._largest))

    def answered(self, header: HeaderReader, now: float) -> None:
        """Obey the provider's rate-limit headers. `now` is Unix time."""
        # Those of a tenant are no matter of the provider. The narrowest of the others is lowered.
        budget = next((each for each, _ in self._taken if each.budget.scope.tenant is None), None)
        if budget is None:
            return
        for meter, unit in ((budget.requests, "requests"), (budget.tokens, "tokens")):
            if meter is not None and (rates := list(provider_rates(header, unit, now))):
                lowest = min(rates, key=lambda each: each.per_minute)
                meter.lower(lowest.per_minute, lowest.seconds)


def budgets_of(settings: ServerSettings) -> RateBudgets:
    """Those of the settings."""
    urls_of = {each.name: urls.normalized(each.base_url) for each in settings.upstreams}
    scopes = [(each, BudgetScope(urls_of[each.name]), f"upstream {each.name}") for each in settings.upstreams]
    found = [_budget_in(each, scope, name) for each, scope, name in scopes]
    for each in settings.budgets:
        scope = BudgetScope(urls_of.get(each.upstream or ""), each.model, each.tenant)
        found.append(_budget_in(each, scope, _name(each)))
    given = settings.spending
    estimates = Spending(bytes_per_token=given.bytes_per_token, output_tokens=given.output_tokens)
    return RateBudgets(found, estimates)


def _budget_in(given: UpstreamSettings | BudgetSettings, scope: BudgetScope, name: str) -> RateBudget:
    return RateBudget(scope, given.requests_per_minute, given.tokens_per_minute, name)


def _merged(budgets: Sequence[RateBudget]) -> tuple[RateBudget, ...]:
    """One for each scope: requests and tokens may be set in different places. Without those that limit
    nothing."""
    by_scope: dict[BudgetScope, RateBudget] = {}
    for each in budgets:
        before = by_scope.get(each.scope, each)
        by_scope[each.scope] = msgspec.structs.replace(
            before,
            requests=each.requests if before.requests is None else before.requests,
            tokens=each.tokens if before.tokens is None else before.tokens,
        )
    return tuple(each for each in by_scope.values() if each.requests is not None or each.tokens is not None)


def budget_of(upstream: UpstreamSettings, estimates: Spending) -> RateBudgets:
    """That of one upstream, as a command gives it."""
    url, requests, tokens = upstream.base_url, upstream.requests_per_minute, upstream.tokens_per_minute
    if requests is None and tokens is None:
        return RateBudgets()
    scope, name = BudgetScope(urls.normalized(url)), f"upstream {public_url(url)}"
    return RateBudgets([RateBudget(scope, requests, tokens, name)], estimates)


def _name(budget: BudgetSettings) -> str:
    """For people. It names no tenant."""
    upstream = f"upstream {budget.upstream}" if budget.upstream else ""
    model = f"model {budget.model}" if budget.model else ""
    return ", ".join(filter(None, (upstream, model, "one tenant" if budget.tenant else "")))


def _without_tenant(scope: BudgetScope) -> BudgetScope:
    return msgspec.structs.replace(scope, tenant=None)


def _width(budget: RateBudget) -> tuple[bool, bool, bool]:
    """Sorts the narrowest budget first: those of a tenant, then those of a model."""
    scope = budget.scope
    return scope.tenant is None, scope.model is None, scope.upstream is None
