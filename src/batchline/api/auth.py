"""Authenticates requests by the API key in `Authorization: Bearer`."""

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from batchline.api.context import Context
from batchline.api.errors import ApiError
from batchline.governance import keys
from batchline.governance.access import Actor
from batchline.model import ANYBODY, DEFAULT_TENANT, Role

_bearer = HTTPBearer(auto_error=False, description="An API key from `batchline keys create`.")


async def authenticate(request: Request) -> Actor:
    """Look up the key in the database for each request, so a revoked key stops working at once.

    The user is the key's name: a new key with the same name belongs to the same user.
    """
    context: Context = request.app.state.context
    if not context.settings.authentication:
        _refuse_other_sites(request)
        return Actor(DEFAULT_TENANT, ANYBODY, Role.ADMIN, alone=True)
    sent = await _bearer(request)
    if sent is None:
        raise _unauthorized("You didn't provide an API key. Send it as 'Authorization: Bearer KEY'.", None)
    async with context.sessions.one() as session:
        key = await keys.authenticate(session, sent.credentials)
    if key is None:
        raise _unauthorized("Incorrect API key provided.", "invalid_api_key")
    return Actor(key.tenant, key.name, key.role)


async def caller(
    request: Request,
    # Shows the scheme in the OpenAPI document.
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Actor:
    """The actor that AuthenticatedRoute found before it read the body."""
    found: Actor = request.state.caller
    return found


Called = Annotated[Actor, Depends(caller)]


def _refuse_other_sites(request: Request) -> None:
    """Refuse web pages of other sites if the server runs without keys.

    A page in a browser on this machine could call the server with a form, or by a DNS name that points to
    loopback. The headers Host and Origin reveal both.
    """
    for source in (f"//{request.headers.get('host', '')}", request.headers.get("origin")):
        if source is not None and not _is_loopback(source):
            message = "This server runs without API keys and accepts requests only from its own machine."
            raise ApiError(403, message, code="forbidden")


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _unauthorized(message: str, code: str | None) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})
