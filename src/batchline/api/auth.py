"""Who calls: the tenant and role of the key in `Authorization: Bearer`."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from batchline.api.context import Context
from batchline.api.errors import ApiError
from batchline.governance import keys
from batchline.model import ANYBODY, DEFAULT_TENANT, Role

_bearer = HTTPBearer(auto_error=False, description="A key of `batchline keys create`.")


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    role: Role
    # None: the server runs without authentication.
    key_id: UUID | None
    # The key's name: a key that takes another's place under the same name is the same user.
    user: str = ANYBODY


async def authenticate(request: Request) -> Caller:
    """Asked of the database each time, so that a revoked key opens nothing from that moment on."""
    context: Context = request.app.state.context
    if not context.settings.authentication:
        _refuse_strange_pages(request)
        return Caller(DEFAULT_TENANT, Role.ADMIN, None)
    displayed = await _bearer(request)
    if displayed is None:
        raise _unauthorized("You didn't provide an API key: send it as 'Authorization: Bearer KEY'.", None)
    async with context.sessions.one() as session:
        key = await keys.authenticate(session, displayed.credentials)
    if key is None:
        raise _unauthorized("Incorrect API key provided.", "invalid_api_key")
    return Caller(key.tenant, key.role, key.id, key.name)


async def caller(
    request: Request,
    # For the API's document.
    displayed: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """Whom the route has found, before it read the body."""
    found: Caller = request.state.caller
    return found


Called = Annotated[Caller, Depends(caller)]


def _refuse_strange_pages(request: Request) -> None:
    """Without keys, a page in a browser on this machine could call us: by a name of its own that it points
    here, or by a form. Both say where they come from."""
    for said in (f"//{request.headers.get('host', '')}", request.headers.get("origin")):
        if said is not None and not _is_loopback(said):
            raise ApiError(403, "Without keys this server answers to its own machine only.", code="forbidden")


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _unauthorized(message: str, code: str | None) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})
