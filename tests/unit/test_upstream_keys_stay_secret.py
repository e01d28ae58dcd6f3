"""An upstream's credentials reach no tenant, wherever the upstream quotes them."""

import json
from io import StringIO
from urllib.parse import quote

import pytest

from batchline.config.settings import UpstreamSettings
from batchline.model import Completed, Ran, Retried
from batchline.secrets.redaction import Redactor
from batchline.upstreams import urls
from batchline.upstreams.catalog import Catalog
from tests.support import operation_executor as operations
from tests.support.http_executor import KEY, an_executor, an_item, line_of, with_upstream
from tests.support.scripted_upstream import Behaviour, Upstream, answers, upstream_that

# With all that JSON and URLs escape.
HARD_KEY = 'ab+/c"d\\e&<core-of-the-key>='


def quoted_in(*behaviours: Behaviour, key: str = KEY, attempt: int = 1) -> list[Ran]:
    async def test(upstream: Upstream) -> list[Ran]:
        async with an_executor(environ={"THE_KEY": key}) as executor:
            item = an_item(upstream.url, api_key_env="THE_KEY", attempt=attempt)
            return [await executor.run(item) for _ in behaviours]

    return with_upstream(test, *behaviours)


@pytest.mark.parametrize("status", [200, 400, 503])
def test_a_key_that_an_answer_quotes_is_in_no_result(status: int) -> None:
    body = json.dumps({"choices": [{"message": {"content": f"You sent {KEY}!"}}]}).encode()
    (verdict,) = quoted_in(answers(status, body), attempt=3)
    assert KEY not in repr(verdict)
    assert "You sent ***!" in repr(line_of(verdict)["response"]["body"])


@pytest.mark.parametrize("status", [200, 400])
def test_a_key_in_the_request_id_is_in_no_result(status: int) -> None:
    (verdict,) = quoted_in(answers(status, b"{}", b"x-request-id: for-" + KEY.encode()))
    assert line_of(verdict)["response"]["request_id"] == "for-***"


def test_a_key_that_a_passing_error_quotes_is_in_no_retry() -> None:
    (verdict,) = quoted_in(answers(503, json.dumps({"detail": f"busy with {KEY}"}).encode()))
    assert isinstance(verdict, Retried)
    assert verdict.message == "busy with ***"


def dotnet(text: str) -> bytes:
    """As some JSON encoders write it: whatever HTML or a URL could misread is escaped."""
    return "".join(
        char if char.isalnum() or char in "-_. !" else f"\\u{ord(char):04X}" for char in text
    ).encode()


@pytest.mark.parametrize(
    "written",
    [
        json.dumps(HARD_KEY)[1:-1].encode(),
        json.dumps(HARD_KEY)[1:-1].replace("/", "\\/").encode(),
        json.dumps(HARD_KEY)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c").encode(),
        dotnet(HARD_KEY),
        quote(HARD_KEY, safe="").encode(),
        quote(HARD_KEY, safe="").lower().encode(),
        quote(HARD_KEY, safe="/+=&").encode(),
    ],
)
def test_a_key_is_found_in_whatever_way_it_is_escaped(written: bytes) -> None:
    (verdict,) = quoted_in(answers(200, b'{"said":"it is %b, is it?"}' % written), key=HARD_KEY)
    assert isinstance(verdict, Completed)
    assert line_of(verdict)["response"]["body"] == {"said": "it is ***, is it?"}


async def test_a_password_in_the_upstreams_url_is_a_credential_too() -> None:
    found = urls.credentials(
        "http://user:hunter2%2Fhunter2@example.org/v1?api_key=query-key&version=2024-10-21"
    )
    assert found == ["query-key", "hunter2/hunter2", "dXNlcjpodW50ZXIyL2h1bnRlcjI="]
    async with (
        upstream_that(answers(200, b'{"said":"hunter2-hunter2"}')) as upstream,
        an_executor() as executor,
    ):
        secret = upstream.url.replace("http://", "http://user:hunter2-hunter2@")
        verdict = await executor.run(an_item(secret))
        sent = upstream.requests[0].headers["authorization"].removeprefix("Basic ")
        assert sent in urls.credentials(secret)
        assert line_of(verdict)["response"]["body"] == {"said": "***"}


def test_a_body_without_the_key_is_not_copied() -> None:
    body = b'{"said":"nothing"}' * 1000
    assert Redactor([KEY, HARD_KEY]).body(body) is body
    # Part of the key alone is none of it.
    assert Redactor([HARD_KEY]).body(b"core-of-the-key") == b"core-of-the-key"


def test_a_placeholder_is_no_secret() -> None:
    (verdict,) = quoted_in(answers(200, b'{"said":"EMPTY"}'), key="EMPTY")
    assert line_of(verdict)["response"]["body"] == {"said": "EMPTY"}


def test_a_governed_operations_answer_does_not_show_the_key(log: StringIO) -> None:
    body = {"message": f"token {operations.KEY} is fine", "kind": "Thing"}
    behaviour = answers(200, json.dumps(body).encode(), b"x-request-id: " + operations.KEY.encode())
    verdict, _ = operations.outcome(behaviour)
    assert isinstance(verdict, Completed)
    assert operations.KEY not in repr(verdict)
    assert operations.KEY not in log.getvalue()


async def test_the_list_of_models_does_not_show_the_key() -> None:
    listed = {"data": [{"id": "small"}, {"id": f"not-for-{KEY}"}]}
    async with upstream_that(answers(200, json.dumps(listed).encode())) as upstream:
        settings = UpstreamSettings("any", f"{upstream.url}/v1", "THE_KEY")
        assert dict(await Catalog([settings], {"THE_KEY": KEY}).models()) == {"any": ("small", "not-for-***")}
