"""The stages that batchline.toml declares, checked.

Their templates are those of `batchline run`. They are the operator's, and are rendered in the worker's
process: Jinja's sandbox keeps them from running code, but not from computing for long.
"""

import re
from typing import Any

from batchline.config import SettingsError
from batchline.config.settings import ServerSettings, StageSettings, UpstreamSettings
from batchline.files.inputs.errors import RowFault
from batchline.files.inputs.formats import InputLimits
from batchline.files.inputs.rendering import (
    InvalidRowTemplate,
    Renderer,
    RowTemplate,
    check_columns,
    check_syntax,
    takes_system,
)
from batchline.model.endpoints import ENDPOINTS
from batchline.operations.codec import TypeMismatch
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage, Render
from batchline.operations.names import checked_name

_FIELD = re.compile(r"[A-Za-z_]\w*")
# In a template, it is the whole item.
_WHOLE_ITEM = "row"
# Fields of a request that the stage itself writes, and the keys for them; None: it has none.
_OWN_FIELDS = {"model": "model", "messages": "prompt", "prompt": "prompt", "input": "prompt", "stream": None}


def declared_stages(server: ServerSettings) -> tuple[HttpStage, ...]:
    """The stages of the settings. Raises SettingsError, which names the line, for a mistake in one.

    Whether the stages that they emit exist is not checked: these may be Python functions.
    """
    return tuple(_stage(each, server) for each in server.stages)


def _stage(settings: StageSettings, server: ServerSettings) -> HttpStage:
    _check_name(settings)
    _check_endpoint(settings)
    _check_params(settings)
    _check_output(settings)
    _check_templates(settings)
    try:
        return HttpStage(settings, _upstream(settings, server), _render(settings))
    except RowFault as error:
        raise _error(settings, "prompt", str(error)) from None


def _render(settings: StageSettings) -> Render:
    """Raises RowFault for a template that cannot be compiled."""
    template = RowTemplate(
        model=settings.model,
        endpoint=settings.endpoint,
        prompt=settings.prompt,
        system=settings.system,
        params=dict(settings.params),
    )
    renderer = Renderer(template, InputLimits(), mark="")

    def render(item: dict[str, Any]) -> dict[str, Any]:
        try:
            return renderer.body(item)
        except RowFault as error:
            raise TypeMismatch(str(error)) from None

    return render


def _check_name(settings: StageSettings) -> None:
    try:
        checked_name("a stage", _stage, settings.name)
    except InvalidApp as error:
        raise _error(settings, "", str(error).partition(". Give")[0]) from None


def _check_endpoint(settings: StageSettings) -> None:
    endpoint = settings.endpoint
    if endpoint not in ENDPOINTS:
        raise _error(settings, "endpoint", f"must be one of {', '.join(sorted(ENDPOINTS))}")
    if settings.system is not None and not takes_system(endpoint):
        raise _error(settings, "system", f"{endpoint} takes no system message; leave it out")


def _check_params(settings: StageSettings) -> None:
    for name in settings.params:
        if name in _OWN_FIELDS:
            own = _OWN_FIELDS[name]
            hint = "leave it out" if own is None else f"give {own} of the stage instead"
            raise _error(settings, "params", f"{name!r} cannot be given here; {hint}")


def _check_output(settings: StageSettings) -> None:
    name = settings.output or settings.name
    if _FIELD.fullmatch(name) and name != _WHOLE_ITEM:
        return
    what = "cannot be" if settings.output else "is the name of the stage, and cannot be"
    raise _error(
        settings,
        "output",
        f"{name!r} {what} a field that templates can name; give letters, digits and underscores, and not"
        f" {_WHOLE_ITEM!r}",
    )


def _check_templates(settings: StageSettings) -> None:
    sources = {"prompt": settings.prompt, "system": settings.system}
    for key, source in sources.items():
        try:
            if source is not None:
                check_syntax(source, "the template")
        except InvalidRowTemplate as error:
            raise _error(settings, key, str(error)) from None
    try:
        check_columns(sources)
    except InvalidRowTemplate as error:
        raise _error(settings, "prompt", str(error)) from None


def _upstream(settings: StageSettings, server: ServerSettings) -> UpstreamSettings:
    upstream = server.upstream_for(settings.model)
    if upstream is None:
        raise _error(
            settings,
            "model",
            f"no upstream serves {settings.model!r}; add it to models of one of [[upstreams]]",
        )
    if upstream.provider is not None:
        raise _error(
            settings,
            "model",
            f"upstream {upstream.name} is an asynchronous provider; a stage needs one that answers at once",
        )
    return upstream


def _error(settings: StageSettings, key: str, why: str) -> SettingsError:
    path = f"stages.{settings.name}.{key}" if key else f"stages.{settings.name}"
    return SettingsError(f"{settings.position_of(key)}: {path}: {why}")
