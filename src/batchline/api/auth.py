"""Who calls: the tenant and role of the key in `Authorization: Bearer`."""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from batchline.api.context import InContext
from batchline.api.errors import ApiError
from batchline.engine import keys
from batchline.model import DEFAULT_TENANT, Role

_bearer = HTTPBearer(auto_error=False, description="A key of `batchline keys create`.")


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    role: Role
    # None: the server runs without authentication.
    key_id: UUID | None


async def caller(
    context: InContext, shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """Asked of the database each time, so that a revoked key opens nothing from that moment on."""
    if not context.settings.authentication:
        return Caller(DEFAULT_TENANT, Role.ADMIN, None)
    if shown is None:
        raise _unauthorized("You didn't provide an API key: send it as 'Authorization: Bearer KEY'.", None)
    async with context.sessions.one() as session:
        key = await keys.authenticate(session, shown.credentials)
    if key is None:
        raise _unauthorized("Incorrect API key provided.", "invalid_api_key")
    return Caller(key.tenant, key.role, key.id)


Called = Annotated[Caller, Depends(caller)]


def _unauthorized(message: str, code: str | None) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})
