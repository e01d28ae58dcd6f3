"""`[[upstreams]]`: where requests go, and which models are whose."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from batchline.config import variables
from batchline.config.keys import UPSTREAM
from batchline.config.settings import ANY_MODEL, ServerSettings, UpstreamSettings
from batchline.config.source import Source

# By its name an upstream is found: that is not to be overridden.
_OVERRIDABLE = {key: reader for key, reader in UPSTREAM.items() if key != "name"}


def read_upstreams(
    source: Source, environ: Mapping[str, str], wanted: Collection[str]
) -> Sequence[UpstreamSettings]:
    """`wanted` are those that operations go to."""
    read = [
        _upstream(source, environ, number, table, wanted)
        for number, table in enumerate(source.tables_of("upstreams"))
    ]
    variables.check_strangers(environ, [upstream.name for upstream in read])
    _check_models(source, read)
    return read


def missing_keys(settings: ServerSettings, environ: Mapping[str, str]) -> list[str]:
    """Why some upstreams could not be asked: variables that should hold their API keys and do not."""
    return [
        f"upstream {upstream.name}: the environment variable {upstream.api_key_env}, which should hold"
        " its API key, is not set"
        for upstream in settings.upstreams
        if upstream.api_key_env and not environ.get(upstream.api_key_env, "").strip()
    ]


def _upstream(
    source: Source, environ: Mapping[str, str], number: int, table: Any, wanted: Collection[str]
) -> UpstreamSettings:
    values = source.table("upstreams", number, table, UPSTREAM)
    name = values.get("name")
    if name is not None:
        values.update(variables.overrides(environ, variables.prefix_of(name), _OVERRIDABLE))
    source.check_required("upstreams", number, values)
    if name in wanted:
        # What is there for operations is sent no models' requests, unless it says that it has them.
        values.setdefault("models", ())
    return UpstreamSettings(**values)


def _check_models(source: Source, upstreams: Sequence[UpstreamSettings]) -> None:
    """Every name and every model is one upstream's, or nobody could say where a line goes."""
    names: dict[str, str] = {}
    owners: dict[str, str] = {}
    for number, upstream in enumerate(upstreams):
        prefix = variables.prefix_of(upstream.name)
        if prefix in names:
            why = f"{upstream.name!r} and {names[prefix]!r} are the same name"
            raise source.error(("upstreams", number, "name"), f"upstreams[{number}].name", why)
        names[prefix] = upstream.name
        for model in upstream.models:
            if model in owners:
                what = "any model" if model == ANY_MODEL else f"model {model!r}"
                why = f"{what} is served by {owners[model]} already"
                raise source.error(("upstreams", number, "models"), f"upstreams[{number}].models", why)
            owners[model] = upstream.name
