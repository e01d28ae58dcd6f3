"""A warning, before lines are sent, about models that their upstream does not list."""

from uuid import UUID

from batchline.cli.display.console import err
from batchline.model import RunSettings
from batchline.store import files
from batchline.store.session import Session
from batchline.upstreams import urls
from batchline.upstreams.catalog import listed_models
from batchline.upstreams.http_upstream import MissingKey, Upstreams

# Names in one warning.
_NAMED = 5


async def warn_of_models(session: Session, file_id: UUID, settings: RunSettings) -> None:
    """Warn of models of a file. Call it before its batch is created, or before it continues."""
    for warning in await _warnings(session, file_id, settings):
        err().print(f"warning: {warning}", markup=False)


async def _warnings(session: Session, file_id: UUID, settings: RunSettings) -> list[str]:
    """What to tell the user. Nothing if the upstream has no list of models, or does not answer in time."""
    if settings.upstream is None:
        return []
    upstream = Upstreams().get(settings.upstream)
    try:
        listed = await listed_models(upstream.route("/v1/models", settings.api_key_env))
    except (urls.InvalidUpstream, MissingKey):
        return []
    finally:
        await upstream.close()
    if not listed:
        return []
    missing = [model for model in await files.models(session, file_id) if not _is_listed(model, listed)]
    return [
        f"{upstream.displayed} does not list the model {_named([model])}, so its lines may fail;"
        f" it lists {_named(listed)}"
        for model in missing[:_NAMED]
    ]


def _is_listed(model: str, listed: tuple[str, ...]) -> bool:
    """Google lists `models/gemini-2.0-flash` and takes the last part, too."""
    return not model or any(name == model or name.endswith(f"/{model}") for name in listed)


def _named(models: list[str] | tuple[str, ...]) -> str:
    names = ", ".join(f'"{model[:100]}"' for model in models[:_NAMED])
    return names if len(models) <= _NAMED else f"{names} and {len(models) - _NAMED} more"
