"""Contradictions between upstreams: settings that each make sense alone, and not together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TypeAlias

from batchline.config import variables
from batchline.config.settings import ANY_MODEL, UpstreamSettings
from batchline.model import Via

# The number of an upstream, one of its keys, and what is wrong with it.
Contradiction: TypeAlias = tuple[int, str, str]
# Not `batch_api`: it also says how lines are sent directly.
_BATCH_KEYS = tuple(
    each.name
    for each in fields(UpstreamSettings)
    if each.name.startswith("batch_") and each.name != "batch_api"
)
IsSet: TypeAlias = Callable[[int, str], bool]


def contradictions(upstreams: Sequence[UpstreamSettings], is_set: IsSet) -> Iterator[Contradiction]:
    """All of them, in the order of the checks. `is_set`: whether an upstream sets a key."""
    yield from _names(upstreams)
    yield from _keys(upstreams, is_set)
    for model in dict.fromkeys(model for each in upstreams for model in each.models):
        yield from _members(model, [(no, each) for no, each in enumerate(upstreams) if model in each.models])
    yield from _aliases(upstreams)
    yield from _escalations(upstreams)


def _names(upstreams: Sequence[UpstreamSettings]) -> Iterator[Contradiction]:
    """A name belongs to one upstream. Names with the same variables are the same name."""
    names: dict[str, str] = {}
    for number, upstream in enumerate(upstreams):
        table = variables.upstream_table(upstream.name)
        if table in names:
            yield number, "name", f"{upstream.name!r} and {names[table]!r} are the same name; choose another"
        names[table] = upstream.name


def _keys(upstreams: Sequence[UpstreamSettings], is_set: IsSet) -> Iterator[Contradiction]:
    """Keys of one upstream that exclude each other."""
    for number, upstream in enumerate(upstreams):
        shared = any(ANY_MODEL in other.models for other in upstreams if other is not upstream)
        if ANY_MODEL in upstream.models and shared and not is_set(number, "models"):
            why = 'another upstream serves any model, too; set models, to ["*"] if both should'
            yield number, "models", why
        if len(set(upstream.models)) < len(upstream.models):
            yield number, "models", f"upstream {upstream.name} lists a model twice; list each model once"
        if upstream.escalate_before is not None and is_set(number, "weight"):
            yield number, "weight", "an upstream with escalate_before has no weight; remove one of the two"
        if upstream.escalate_before is not None and upstream.provider is not None:
            yield number, "escalate_before", "an asynchronous provider cannot take lines near their deadline"
        yield from _via(number, upstream, is_set)
        if upstream.health is None and is_set(number, "health_every"):
            yield number, "health_every", "set health, too: the path to request"


def _via(number: int, upstream: UpstreamSettings, is_set: IsSet) -> Iterator[Contradiction]:
    """Keys about its batch API."""
    if upstream.via is Via.DIRECT:
        given = next((key for key in _BATCH_KEYS if is_set(number, key)), None)
        if given is not None:
            yield number, given, 'set via, too, to "batch" or "auto": lines are sent directly otherwise'
        return
    if upstream.provider is not None:
        yield number, "via", "an asynchronous provider takes lines one by one; remove via or provider"
    if upstream.escalate_before is not None:
        yield number, "via", "lines near their deadline are sent directly; remove via or escalate_before"
    if upstream.aliases:
        yield number, "via", "lines go through a batch API as they are; remove via or aliases"


def _members(model: str, members: Sequence[tuple[int, UpstreamSettings]]) -> Iterator[Contradiction]:
    """Several upstreams for one model."""
    what = displayed(model)
    known: dict[str, str] = {}
    for number, upstream in members:
        url = upstream.base_url.lower().rstrip("/")
        if url in known:
            why = (
                f"upstream {known[url]} already serves {what} at this URL; remove one, or give it more weight"
            )
            yield number, "base_url", why
        known[url] = upstream.name
        if len(members) > 1 and upstream.provider is not None:
            why = f"an asynchronous provider must be the only upstream for {what}"
            yield number, "provider", why
        if len(members) > 1 and upstream.via is not Via.DIRECT:
            yield number, "via", f"an upstream with a batch API must be the only one for {what}"
    usual = [(number, each) for number, each in members if each.escalate_before is None]
    if usual and not any(each.weight for _, each in usual):
        why = f"all upstreams for {what} have weight 0; one must have more"
        yield usual[-1][0], "weight", why


def _aliases(upstreams: Sequence[UpstreamSettings]) -> Iterator[Contradiction]:
    named = {model for each in upstreams for model in each.models}
    for number, upstream in enumerate(upstreams):
        for model in upstream.aliases:
            if model in upstream.models or (ANY_MODEL in upstream.models and model not in named):
                continue
            yield (
                number,
                "aliases",
                f"upstream {upstream.name} does not serve {model!r}; add it to its models",
            )


def _escalations(upstreams: Sequence[UpstreamSettings]) -> Iterator[Contradiction]:
    """An upstream for escalations helps another one."""
    usual = {model for each in upstreams if each.escalate_before is None for model in each.models}
    for number, upstream in enumerate(upstreams):
        alone = [model for model in upstream.models if model not in usual and ANY_MODEL not in usual]
        if upstream.escalate_before is not None and (alone or not upstream.models):
            what = displayed(alone[0]) if alone else "any model"
            why = f"no upstream without escalate_before serves {what}, so most of its lines would never run"
            yield number, "escalate_before", why


def displayed(model: str) -> str:
    return "any model" if model == ANY_MODEL else f"model {model!r}"
