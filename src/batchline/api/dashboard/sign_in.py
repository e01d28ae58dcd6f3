"""/api/v1/session: sign a browser in with a key, say who is signed in, and sign out. /signin: for
`batchline ui`."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from batchline.api.auth import Called
from batchline.api.browser import (
    SignInLimit,
    check_same_site,
    clear_cookie,
    csrf_of,
    digest,
    new_secret,
    sent_secret,
    set_cookie,
)
from batchline.api.context import ApiContext, InContext
from batchline.api.errors import ApiError, documented
from batchline.api.governance.schemas import PREFIX
from batchline.api.routing import AuthenticatedRoute, PublicRoute, not_for_monitors
from batchline.governance import keys
from batchline.model import Role
from batchline.store import browser_sessions

_PATH = f"{PREFIX}/session"
# Browsers that one key may be signed in with.
_MAX_SESSIONS = 50

public_router = APIRouter(tags=["dashboard"], route_class=PublicRoute)
router = APIRouter(tags=["dashboard"], route_class=AuthenticatedRoute)


class SignIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class SessionObject(BaseModel):
    """Who is signed in. `csrf` belongs into the header X-Batchline-CSRF of requests that change something."""

    user: str
    tenant: str
    role: str
    # Null: the request has a key, or the server needs none.
    expires_at: datetime | None
    csrf: str


@public_router.post(_PATH, status_code=204, responses=documented(403, 413, 429))
async def sign_in(requested: SignIn, request: Request, context: InContext) -> Response:
    """Sign a browser in with an API key. Always begins a new session."""
    check_same_site(request)
    limit: SignInLimit = request.app.state.sign_ins
    limit.check(request)
    secret = new_secret()
    async with context.sessions.one() as session:
        key = await keys.authenticate(session, requested.key)
        if key is None or not context.settings.authentication:
            limit.failed(request)
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        if key.role is Role.MONITOR:
            raise not_for_monitors()
        lifetime = context.settings.session_lifetime
        await browser_sessions.add(session, digest(secret), key.id, lifetime=lifetime, maximum=_MAX_SESSIONS)
        if (before := sent_secret(request)) is not None:
            await browser_sessions.drop(session, digest(before))
    response = Response(status_code=204)
    set_cookie(request, response, secret, lifetime)
    return response


@router.get(_PATH, responses=documented())
async def get_session(request: Request, caller: Called, context: InContext) -> SessionObject:
    """Who is signed in."""
    secret = sent_secret(request)
    expires_at = None
    if secret is not None and context.settings.authentication:
        async with context.sessions.one() as session:
            found = await browser_sessions.find(session, digest(secret))
        expires_at = None if found is None else found.expires_at
    return SessionObject(
        user=caller.user,
        tenant=caller.tenant,
        role=caller.role.value,
        expires_at=expires_at,
        csrf="" if secret is None else csrf_of(secret),
    )


@router.delete(_PATH, status_code=204, responses=documented(403))
async def sign_out(request: Request, caller: Called, context: InContext) -> Response:
    """End this browser's session."""
    secret = sent_secret(request)
    if secret is not None and context.local is not None:
        context.local.sign_out(secret)
    elif secret is not None:
        async with context.sessions.one() as session:
            await browser_sessions.drop(session, digest(secret))
    response = Response(status_code=204)
    clear_cookie(request, response)
    return response


@public_router.get("/signin", include_in_schema=False)
async def sign_in_here(token: str, request: Request) -> Response:
    """Sign in with the token that `batchline ui` has printed. It is good for one use."""
    context: ApiContext = request.app.state.context
    if context.local is None:
        raise ApiError(404, "Sign in with a key.", code="not_found")
    secret = context.local.sign_in(token)
    if secret is None:
        # The right token is never refused: every user of this machine has the same address.
        limit: SignInLimit = request.app.state.sign_ins
        limit.check(request)
        limit.failed(request)
        message = "This address was used already, or is wrong. Start `batchline ui` again."
        raise ApiError(403, message, code="forbidden")
    response = RedirectResponse("/", 303)
    set_cookie(request, response, secret, context.settings.session_lifetime)
    return response
