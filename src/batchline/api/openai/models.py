"""/v1/models: the models of the configured upstreams."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.errors import documented, not_found
from batchline.api.routing import AuthenticatedRoute
from batchline.config.settings import ANY_MODEL, ServerSettings, UpstreamSettings
from batchline.upstreams.catalog import Catalog

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=AuthenticatedRoute)


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    # Upstreams do not report it.
    created: int = 0
    # The upstream's name, or the names of several.
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelObject]


def _catalog(request: Request) -> Catalog:
    catalog: Catalog = request.app.state.catalog
    return catalog


InCatalog = Annotated[Catalog, Depends(_catalog)]


@router.get("", responses=documented())
async def list_models(context: InContext, caller: Called, catalog: InCatalog) -> ModelList:
    """The models in the settings, and those that upstreams for any model list."""
    owners = await _owners(context.settings, catalog)
    return ModelList(data=[ModelObject(id=model, owned_by=owners[model]) for model in sorted(owners)])


@router.get("/{model:path}", responses=documented(404))
async def get_model(model: str, context: InContext, caller: Called, catalog: InCatalog) -> ModelObject:
    """One model of the list. An upstream for any model may accept models that it does not list."""
    owners = await _owners(context.settings, catalog)
    if model not in owners:
        raise not_found("model", model, "model")
    return ModelObject(id=model, owned_by=owners[model])


async def _owners(settings: ServerSettings, catalog: Catalog) -> dict[str, str]:
    """The upstreams of each model: their names, with commas between them."""
    listed = await catalog.models()
    models = {model for names in listed.values() for model in names}
    models |= {model for upstream in settings.upstreams for model in (*upstream.models, *upstream.aliases)}
    return {
        model: ", ".join(each.name for each in settings.upstreams_for(model) if _has(each, model, listed))
        for model in models - {ANY_MODEL}
    }


def _has(upstream: UpstreamSettings, model: str, listed: Mapping[str, Sequence[str]]) -> bool:
    """Whether the upstream names the model, or lists it as one for any model."""
    named = model in upstream.models or model in upstream.aliases
    return named or model in listed.get(upstream.name, ())
