"""Browsers that are signed in: the cookie, protection against other sites, and headers of all answers.

A browser sends the cookie by itself, so a request that changes something must prove that our page has sent
it: by a token that only this page can read, and by the headers that say which site it comes from.
"""

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchline.api.errors import ApiError

COOKIE = "batchline_session"
# Browsers accept a cookie with this prefix only over TLS and from the host itself, so no other host of the
# same domain can plant one.
_OF_HOST = "__Host-"
CSRF_HEADER = "x-batchline-csrf"
_RANDOM_BYTES = 32
_SAFE = ("GET", "HEAD", "OPTIONS")
# Nothing is loaded from elsewhere, nothing is framed, and nothing inline is run.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def new_secret() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)


def digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


def csrf_of(secret: str) -> str:
    """The token of a session. It reveals nothing about the secret."""
    return hmac.new(secret.encode("utf-8", "surrogateescape"), b"csrf", sha256).hexdigest()


def set_cookie(request: Request, response: Response, secret: str, lifetime: float) -> None:
    """Only over TLS, unless the browser calls this machine."""
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=int(lifetime),
        path="/",
        secure=not names_loopback(request),
        httponly=True,
        samesite="strict",
    )


def clear_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(
        cookie_name(request),
        path="/",
        secure=not names_loopback(request),
        httponly=True,
        samesite="strict",
    )


def cookie_name(request: Request) -> str:
    return COOKIE if names_loopback(request) else _OF_HOST + COOKIE


def sent_secret(request: Request) -> str | None:
    """The secret of the session that a browser has sent."""
    return request.cookies.get(cookie_name(request))


def check_own_page(request: Request, secret: str) -> None:
    """Refuse a request with a cookie that another site has made a browser send. Raises a 403."""
    check_same_site(request)
    if request.method in _SAFE:
        return
    sent = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(), csrf_of(secret).encode()):
        raise _forbidden("This request has no valid CSRF token. Reload the page and try again.")


def check_same_site(request: Request) -> None:
    """Refuse what a page of another site sends. Raises a 403."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    other_origin = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if other_origin or site not in (None, "same-origin", "none"):
        raise _forbidden("This request comes from a page of another site.")
    if request.method not in _SAFE and origin is None and site is None:
        raise _forbidden("A browser's request must say which site it comes from.")


def names_loopback(request: Request) -> bool:
    return is_loopback(f"//{request.headers.get('host', '')}")


def is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, code="forbidden")


class SignInLimit:
    """Limits failed attempts to sign in, per address, in each server.

    A key has 256 random bits, so nobody guesses one. There is no limit for all addresses together: it would
    let anybody keep everybody else from signing in.
    """

    def __init__(
        self,
        *,
        per_address: int = 10,
        remembered: int = 3_000,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address = per_address
        self._seconds = seconds
        self._clock = clock
        # The newest failures: when, and from where.
        self._failures: deque[tuple[float, str]] = deque(maxlen=remembered)

    def check(self, request: Request) -> None:
        """Raises a 429."""
        now = self._clock()
        while self._failures and now - self._failures[0][0] >= self._seconds:
            self._failures.popleft()
        address = _address(request)
        own = [at for at, each in self._failures if each == address]
        if len(own) >= self._per_address:
            wait = int(self._seconds - (now - own[0])) + 1
            raise ApiError(
                429,
                f"Too many failed attempts to sign in. Try again in {wait} s.",
                code="too_many_sign_ins",
                type="rate_limit_error",
                headers={"retry-after": str(wait)},
            )

    def failed(self, request: Request) -> None:
        self._failures.append((self._clock(), _address(request)))


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host


class LocalSignIn:
    """Sign-in of `batchline ui`: one token, good for one use, and the sessions that it has begun.

    They are in memory only: nobody else runs this server, and they end with it.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.token = new_secret()
        self._unused: bytes | None = digest(self.token)
        self._sessions: set[bytes] = set()

    def sign_in(self, token: str) -> str | None:
        """The secret of a new session; None: the token is wrong, or was used."""
        if self._unused is None or not hmac.compare_digest(digest(token), self._unused):
            return None
        self._unused = None
        secret = new_secret()
        self._sessions.add(digest(secret))
        return secret

    def knows(self, secret: str) -> bool:
        return digest(secret) in self._sessions

    def sign_out(self, secret: str) -> None:
        self._sessions.discard(digest(secret))


class SecurityHeaders:
    """Middleware for the headers of all answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", CONTENT_SECURITY_POLICY)
                if path.startswith("/api/v1/"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class OwnHostOnly:
    """Middleware for `batchline ui`: answers only requests to its own address.

    A web page can give its own DNS name the address of this machine, and then call this server as if it
    were part of its own site. The Host header reveals the name.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = [value.lower() for name, value in scope["headers"] if name == b"host"]
            if len(sent) != 1 or sent[0] not in self._hosts:
                refusal = ApiError(421, "This server answers only under its own address.", code="wrong_host")
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
