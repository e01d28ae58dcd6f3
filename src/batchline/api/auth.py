"""Authenticates requests by the API key in `Authorization: Bearer`, or by the cookie of a browser that is
signed in."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from batchline.api.browser import check_own_page, digest, is_loopback, sent_secret
from batchline.api.context import ApiContext
from batchline.api.errors import ApiError
from batchline.governance import keys
from batchline.governance.access import Actor
from batchline.model import ANYBODY, DEFAULT_TENANT, Role
from batchline.store import browser_sessions

_bearer = HTTPBearer(auto_error=False, description="An API key from `batchline keys create`.")


async def authenticate(request: Request) -> Actor:
    """Look up the key or the session in the database for each request, so a revoked key stops working at
    once.

    The user is the key's name: a new key with the same name belongs to the same user.
    `request.state.credential` is the hash that was looked up.
    """
    context: ApiContext = request.app.state.context
    request.state.credential = None
    if not context.settings.authentication:
        return _without_keys(request, context)
    sent = await _bearer(request)
    if sent is None and (secret := sent_secret(request)) is not None:
        return await _signed_in(request, context, secret)
    if sent is None:
        raise _unauthorized("You didn't provide an API key. Send it as 'Authorization: Bearer KEY'.", None)
    async with context.sessions.one() as session:
        key = await keys.authenticate(session, sent.credentials)
    if key is None:
        raise _unauthorized("Incorrect API key provided.", "invalid_api_key")
    request.state.credential = keys.digest(sent.credentials)
    return Actor(key.tenant, key.name, key.role)


async def _signed_in(request: Request, context: ApiContext, secret: str) -> Actor:
    async with context.sessions.one() as session:
        found = await browser_sessions.find(session, digest(secret))
    if found is None:
        raise _unauthorized("Your session has ended. Sign in again.", "session_ended")
    check_own_page(request, secret)
    request.state.credential = digest(secret)
    return Actor(found.key.tenant, found.key.name, found.key.role)


def _without_keys(request: Request, context: ApiContext) -> Actor:
    _refuse_other_sites(request)
    if context.local is not None:
        secret = sent_secret(request)
        if secret is None or not context.local.knows(secret):
            raise _unauthorized("Open the address that `batchline ui` has printed.", "session_ended")
        check_own_page(request, secret)
    return Actor(context.tenant or DEFAULT_TENANT, ANYBODY, Role.ADMIN, alone=True)


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
        if source is not None and not is_loopback(source):
            message = "This server runs without API keys and accepts requests only from its own machine."
            raise ApiError(403, message, code="forbidden")


def _unauthorized(message: str, code: str | None) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})
