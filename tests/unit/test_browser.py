"""Sign-in limits, the token of `batchline ui`, and which pages belong to the server."""

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request, Response

from batchline.api.browser import (
    LocalSignIn,
    OwnHostOnly,
    SignInLimit,
    check_own_page,
    csrf_of,
    is_loopback,
    sent_secret,
    set_cookie,
)
from batchline.api.dashboard.sign_in import sign_in_here
from batchline.api.errors import ApiError
from batchline.config.settings import ServerSettings


def a_request(method: str = "GET", address: str = "192.0.2.1", **headers: str) -> Request:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/", "headers": sent, "client": (address, 1)}
    return Request(scope | {"query_string": b"", "scheme": "http", "server": ("x", 1)})


def test_failed_attempts_are_limited_per_address() -> None:
    now = 0.0
    limit = SignInLimit(per_address=2, seconds=60, clock=lambda: now)
    one = a_request(address="192.0.2.1")
    for _ in range(2):
        limit.check(one)
        limit.failed(one)
    with pytest.raises(ApiError, match="Try again in 61 s"):
        limit.check(one)
    now = 60.0
    limit.check(one)


def test_however_many_addresses_fail_others_can_sign_in() -> None:
    limit = SignInLimit()
    for number in range(20_000):
        limit.failed(a_request(address=f"10.0.{number >> 8}.{number & 255}"))
    limit.check(a_request(address="192.0.2.99"))


async def test_the_right_token_of_ui_is_accepted_however_many_wrong_ones_were_tried() -> None:
    """Every user of this machine has the same address."""
    local, limit = LocalSignIn(8080), SignInLimit()
    context = SimpleNamespace(local=local, settings=ServerSettings())
    app = SimpleNamespace(state=SimpleNamespace(context=context, sign_ins=limit))
    request = a_request(host="127.0.0.1:8080")
    request.scope["app"] = app
    statuses = []
    for _ in range(12):
        with pytest.raises(ApiError) as refused:
            await sign_in_here("wrong", request)
        statuses.append(refused.value.status)
    assert statuses == [403] * 10 + [429] * 2
    assert (await sign_in_here(local.token, request)).status_code == 303


def test_off_loopback_no_other_host_can_plant_the_cookie() -> None:
    """Browsers accept the prefix only from the host itself, over TLS."""
    response = Response()
    set_cookie(a_request(host="batch.example.com"), response, "secret", 60)
    assert response.headers["set-cookie"].startswith("__Host-batchline_session=secret;")
    planted = a_request(host="batch.example.com", cookie="batchline_session=planted")
    assert sent_secret(planted) is None
    own = a_request(host="batch.example.com", cookie="__Host-batchline_session=secret")
    assert sent_secret(own) == "secret"
    assert sent_secret(a_request(host="127.0.0.1:8080", cookie="batchline_session=secret")) == "secret"


def test_the_token_of_ui_is_good_for_one_use() -> None:
    local = LocalSignIn(8080)
    assert local.sign_in("wrong") is None
    secret = local.sign_in(local.token)
    assert secret is not None
    assert local.sign_in(local.token) is None
    assert local.knows(secret)
    assert not local.knows(local.token)
    local.sign_out(secret)
    assert not local.knows(secret)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("//127.0.0.1:8080", True),
        ("//localhost", True),
        ("//[::1]:80", True),
        ("//127.0.0.1.evil.example", False),
        ("//localhost.evil.example", False),
        ("//evil.example", False),
        ("//", False),
        ("//[", False),
    ],
)
def test_loopback_names_this_machine_and_nothing_else(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback


def test_a_page_of_the_server_may_change_things_with_its_token() -> None:
    token = csrf_of("secret")
    own = {"host": "a:1", "origin": "http://a:1"}
    check_own_page(a_request("POST", **own, x_batchline_csrf=token), "secret")
    check_own_page(a_request("GET", host="a:1"), "secret")
    for method, headers in (
        ("POST", own),
        ("POST", own | {"x_batchline_csrf": csrf_of("other")}),
        ("POST", {"host": "a:1", "x_batchline_csrf": token}),
        ("POST", own | {"origin": "http://a:2", "x_batchline_csrf": token}),
        ("GET", {"host": "a:1", "sec_fetch_site": "cross-site"}),
    ):
        with pytest.raises(ApiError):
            check_own_page(a_request(method, **headers), "secret")


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([b"127.0.0.1:8080"], 200),
        ([b"LOCALHOST:8080"], 200),
        ([b"[::1]:8080"], 200),
        ([b"127.0.0.1"], 421),
        ([b"127.0.0.1:8081"], 421),
        ([b"evil.example:8080"], 421),
        ([], 421),
        ([b"127.0.0.1:8080", b"evil.example"], 421),
    ],
)
async def test_ui_answers_only_under_its_own_address(hosts: list[bytes], status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"host", each) for each in hosts], "method": "GET", "path": "/"}
    await OwnHostOnly(app, 8080)(scope, receive, send)
    assert sent[0]["status"] == status
