"""Contradictions between budgets per minute, and budgets that could never apply."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from batchline.config.settings import ANY_MODEL, BudgetSettings, UpstreamSettings

# A table and its number, one of its keys, and what is wrong with it.
BudgetMistake: TypeAlias = tuple[str, int, str, str]
# The URL of an upstream, a model and a tenant. None: any.
_Scope: TypeAlias = tuple[str | None, str | None, str | None]

_UNITS = ("requests_per_minute", "tokens_per_minute")


def budget_contradictions(
    upstreams: Sequence[UpstreamSettings], budgets: Sequence[BudgetSettings]
) -> Iterator[BudgetMistake]:
    """All of them, in the order of the checks."""
    for number, upstream in enumerate(upstreams):
        yield from _amounts("upstreams", number, upstream)
        if upstream.tokens_per_minute is not None and not upstream.models:
            why = f"upstream {upstream.name} serves no models, so its requests have no tokens"
            yield "upstreams", number, "tokens_per_minute", why
    for number, budget in enumerate(budgets):
        yield from _amounts("budgets", number, budget)
        yield from _scope(number, budget, upstreams)
    yield from _repeated(upstreams, budgets)


def _amounts(table: str, number: int, given: UpstreamSettings | BudgetSettings) -> Iterator[BudgetMistake]:
    requests, tokens = given.requests_per_minute, given.tokens_per_minute
    if requests is not None and tokens is not None and tokens < requests:
        why = f"is less than requests_per_minute ({requests:,}), and each request has at least one token"
        yield table, number, "tokens_per_minute", why


def _scope(
    number: int, budget: BudgetSettings, upstreams: Sequence[UpstreamSettings]
) -> Iterator[BudgetMistake]:
    if all(getattr(budget, unit) is None for unit in _UNITS):
        yield "budgets", number, "requests_per_minute", "set it, or tokens_per_minute, or both"
    if budget.upstream is None and budget.model is None and budget.tenant is None:
        yield "budgets", number, "upstream", "say what it is for: set upstream, model or tenant"
    known = {each.name: each for each in upstreams}
    if budget.upstream is not None and budget.upstream not in known:
        near = get_close_matches(budget.upstream, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield "budgets", number, "upstream", f"there is no upstream {budget.upstream!r}{hint}"
        return
    serving = list(upstreams) if budget.upstream is None else [known[budget.upstream]]
    if budget.model is not None and not any(_serves(each, budget.model) for each in serving):
        who = (
            "no upstream serves" if budget.upstream is None else f"upstream {budget.upstream} does not serve"
        )
        yield "budgets", number, "model", f"{who} {budget.model!r}; add it to its models"
    if budget.tokens_per_minute is not None and serving and not any(each.models for each in serving):
        why = "its upstream serves no models, so its requests have no tokens"
        yield "budgets", number, "tokens_per_minute", why


def _serves(upstream: UpstreamSettings, model: str) -> bool:
    return model in upstream.models or ANY_MODEL in upstream.models


def _repeated(
    upstreams: Sequence[UpstreamSettings], budgets: Sequence[BudgetSettings]
) -> Iterator[BudgetMistake]:
    """There is one number for the same requests. Upstreams with one URL are the same to their provider."""
    urls = {each.name: each.base_url.lower().rstrip("/") for each in upstreams}
    seen: dict[tuple[_Scope, str], str] = {}
    tables: list[tuple[str, int, str, _Scope, UpstreamSettings | BudgetSettings]] = [
        *(
            ("upstreams", number, f"upstream {each.name}", (urls[each.name], None, None), each)
            for number, each in enumerate(upstreams)
        ),
        *(
            (
                "budgets",
                number,
                f"budgets[{number}]",
                (urls.get(each.upstream or ""), each.model, each.tenant),
                each,
            )
            for number, each in enumerate(budgets)
        ),
    ]
    for table, number, name, scope, given in tables:
        for unit in _UNITS:
            if getattr(given, unit) is None:
                continue
            if (scope, unit) in seen:
                yield (
                    table,
                    number,
                    unit,
                    f"{seen[scope, unit]} sets it for the same requests; keep one of them",
                )
            seen[scope, unit] = name
