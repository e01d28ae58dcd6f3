"""/v1/models: what the configured upstreams serve."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.errors import documented, not_found
from batchline.config import ANY_MODEL, ServerSettings

router = APIRouter(prefix="/v1/models", tags=["models"])


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    # Nobody knows when an upstream's model was made.
    created: int = 0
    # The upstream's name.
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelObject]


@router.get("", responses=documented())
async def list_models(context: InContext, caller: Called) -> ModelList:
    """The models that upstreams name. One that takes any model names none."""
    return ModelList(data=_named(context.settings))


@router.get("/{model:path}", responses=documented(404))
async def get_model(model: str, context: InContext, caller: Called) -> ModelObject:
    """A model that can be run, also by an upstream that takes any."""
    upstream = context.settings.upstream_for(model)
    if upstream is None or model == ANY_MODEL:
        raise not_found("model", model, "model")
    return ModelObject(id=model, owned_by=upstream.name)


def _named(settings: ServerSettings) -> list[ModelObject]:
    names = {model for upstream in settings.upstreams for model in upstream.models} - {ANY_MODEL}
    owners = {name: settings.upstream_for(name) for name in sorted(names)}
    return [ModelObject(id=name, owned_by=owner.name) for name, owner in owners.items() if owner]
