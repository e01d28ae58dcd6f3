"""The HTTP executor against upstreams that misbehave in every way we know, on real sockets."""

import asyncio
import gzip
import json
from io import StringIO
from typing import Any, cast

import pytest

from batchline.executors.executor import Executor
from batchline.executors.http import HttpExecutor
from batchline.model import Completed, Deferred, Failed, Retried, TimedOut, Usage
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import HttpSettings
from batchline.upstreams.retry import Backoff
from tests.support.http_executor import (
    BATCH,
    KEY,
    an_executor,
    an_item,
    line_of,
    unreachable,
    verdict_on,
)
from tests.support.scripted_upstream import (
    ANSWER,
    CUT_SHORT,
    Behaviour,
    an_upstream_that_refuses,
    answers,
    answers_well,
    hangs,
    http,
    says,
    says_and_closes,
    says_and_resets,
    upstream_that,
)

# --- Answers -----------------------------------------------------------------------------------------------


def test_a_good_answer_becomes_the_items_output_line() -> None:
    verdict = verdict_on(answers_well)
    assert isinstance(verdict, Completed)
    assert verdict.status_code == 200
    assert verdict.usage == Usage(12, 5, 34, 7)
    assert line_of(verdict) == {
        "id": f"batch_req_{BATCH.hex}_1",
        "custom_id": "line-1",
        "response": {"status_code": 200, "request_id": "req_7", "body": ANSWER},
        "error": None,
    }


async def test_the_request_is_the_lines_body_with_what_identifies_us() -> None:
    async with upstream_that(answers_well) as upstream:
        item = an_item(upstream.url, api_key_env="THE_KEY")
        async with an_executor(environ={"THE_KEY": f"{KEY}\n"}) as executor:
            await executor.run(item)
        (request,) = upstream.requests
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.body == item.body
        assert request.headers["content-type"] == "application/json"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["idempotency-key"] == item.idempotency_key
        assert request.headers["user-agent"].startswith("batchline/")


async def test_an_attempt_has_one_idempotency_key_and_the_next_attempt_another() -> None:
    async with upstream_that(answers_well) as upstream:
        async with an_executor() as executor:
            for attempt in (1, 1, 2):
                await executor.run(an_item(upstream.url, attempt=attempt))
        first, again, second = (request.headers["idempotency-key"] for request in upstream.requests)
        assert first == again
        assert first != second


async def test_requests_share_a_connection() -> None:
    async with upstream_that(answers_well) as upstream:
        async with an_executor() as executor:
            for line_no in range(1, 21):
                await executor.run(an_item(upstream.url, line_no=line_no))
        assert len(upstream.requests) == 20
        # A connection comes back to its pool in another thread: a request that is quicker opens a second one.
        assert upstream.accepted < 20


def test_a_pretty_printed_answer_fits_on_one_line() -> None:
    verdict = verdict_on(answers(200, json.dumps(ANSWER, indent="\t").replace("\n", "\r\n").encode()))
    assert line_of(verdict)["response"]["body"] == ANSWER
    assert isinstance(verdict, Completed)
    assert not set(verdict.output) & set(range(32))


def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(json.dumps(ANSWER).encode())
    verdict = verdict_on(answers(200, body, b"Content-Encoding: gzip"))
    assert line_of(verdict)["response"]["body"] == ANSWER


def test_an_answer_in_chunks_is_read() -> None:
    verdict = verdict_on(
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
    )
    assert line_of(verdict)["response"]["body"] == {}


def test_without_an_id_from_the_upstream_the_request_is_named_by_its_key() -> None:
    for header in (b"x-other: 1", b"x-request-id: \xff\xfe"):
        line = line_of(verdict_on(answers(200, b"{}", header)))
        assert line["response"]["request_id"] == f"{BATCH.hex}-1-1"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>Welcome</html>", id="HTML"),
        pytest.param(json.dumps(ANSWER).encode()[:-5], id="truncated JSON"),
        pytest.param(b'{"a": "\xff"}', id="invalid UTF-8"),
        pytest.param(b'{"a": NaN}', id="not quite JSON"),
        pytest.param(b"[" * 100_000, id="bottomless JSON"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_success_without_json_is_tried_again_and_is_never_kept(body: bytes) -> None:
    again = verdict_on(answers(200, body))
    assert isinstance(again, Retried)
    assert again.error_code == "invalid_response"
    line = line_of(verdict_on(answers(200, body), attempt=3))
    assert line["response"] is None
    assert line["error"]["code"] == "invalid_response"


def test_a_204_is_an_invalid_response_and_is_retried() -> None:
    again = verdict_on(answers(204))
    assert isinstance(again, Retried)
    assert again.error_code == "invalid_response"


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("length", [b"Content-Length: 2000000", b"Transfer-Encoding: chunked"])
def test_an_answer_that_is_too_large_is_not_read_to_its_end(length: bytes, attempt: int) -> None:
    # It never ends: a verdict proves that nobody waited for the end.
    endless = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n1e8480\r\n%b" % (length, b"x" * 1_000_000)
    verdict = verdict_on(says(endless), HttpSettings(max_body=1000), attempt=attempt)
    assert isinstance(verdict, Failed)
    assert line_of(verdict)["error"]["code"] == "response_too_large"


def test_an_answer_of_just_the_limit_is_taken() -> None:
    body = b'"%b"' % (b"x" * 998)
    assert isinstance(verdict_on(answers(200, body), HttpSettings(max_body=1000)), Completed)
    assert isinstance(verdict_on(answers(200, body), HttpSettings(max_body=999)), Failed)


# --- Refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_temporary_errors_are_retried_and_the_last_answer_is_kept(status: int) -> None:
    refusal = answers(status, b'{"error": {"message": "Slow down."}}')
    again = verdict_on(refusal)
    assert isinstance(again, Retried)
    assert (again.error_code, again.message) == (f"http_{status}", "Slow down.")
    assert 0 < again.delay <= 0.5
    last = verdict_on(refusal, attempt=3)
    assert isinstance(last, Failed)
    assert last.status_code == status
    assert line_of(last)["response"]["status_code"] == status
    assert line_of(last)["response"]["body"] == {"error": {"message": "Slow down."}}
    assert line_of(last)["error"] is None


@pytest.mark.parametrize("status", [301, 302, 304, 400, 401, 403, 404, 413, 422])
def test_permanent_errors_fail_at_once_with_their_answer(status: int) -> None:
    body = b"" if status == 304 else b'{"error": {"message": "No."}}'
    verdict = verdict_on(says_and_closes(http(status, body)))
    assert isinstance(verdict, Failed)
    assert verdict.status_code == status
    assert line_of(verdict)["response"]["status_code"] == status
    assert line_of(verdict)["response"]["body"] == ("" if status == 304 else {"error": {"message": "No."}})


def test_an_error_page_is_kept_as_text() -> None:
    verdict = verdict_on(answers(404, "<h1>Où ?</h1>\n\x00".encode() + b"\xff" * 3))
    assert line_of(verdict)["response"]["body"] == "<h1>Où ?</h1>\n\x00" + "\ufffd" * 3


async def test_a_redirect_is_not_followed() -> None:
    async with upstream_that(answers_well) as elsewhere:
        location = b"Location: %b/v1/chat/completions" % elsewhere.url.encode()
        async with upstream_that(answers(307, b"", location)) as upstream, an_executor() as executor:
            verdict = await executor.run(an_item(upstream.url))
        assert isinstance(verdict, Failed)
        assert verdict.status_code == 307
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "In OpenAI\'s way"}}', "In OpenAI's way"),
        (b'{"error": "as text"}', "as text"),
        (b'{"object": "error", "message": "at the top"}', "at the top"),
        (b'{"detail": "from FastAPI"}', "from FastAPI"),
        (b'{"error": {"message": ["odd"]}, "detail": {}}', "The upstream answered 503 Service Unavailable"),
        (b"<html>", "The upstream answered 503 Service Unavailable"),
        (b"", "The upstream answered 503 Service Unavailable"),
        (b'{"error": "%b"}' % (b"x" * 9000), "x" * 500),
    ],
)
def test_a_retry_quotes_the_upstreams_error(body: bytes, message: str) -> None:
    verdict = verdict_on(answers(503, body))
    assert isinstance(verdict, Retried)
    assert verdict.message == message


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        pytest.param((b"Retry-After: 7",), 7.0, id="seconds"),
        pytest.param((b"Retry-After: 1.5",), 1.5, id="decimals"),
        pytest.param((b"retry-after-ms: 2500", b"Retry-After: 9"), 2.5, id="milliseconds"),
        pytest.param((b"Retry-After: 99999999",), 3600.0, id="too long"),
        pytest.param(
            (b"Date: Sun, 06 Nov 1994 08:49:30 GMT", b"Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"),
            7.0,
            id="date",
        ),
    ],
)
def test_retry_after_is_obeyed(headers: tuple[bytes, ...], delay: float) -> None:
    verdict = verdict_on(answers(429, b"{}", *headers))
    assert isinstance(verdict, Retried)
    assert delay <= verdict.delay <= delay * 9 / 8


@pytest.mark.parametrize("value", [b"-5", b"soon", b"nan", b"\xff", b""])
def test_an_invalid_retry_after_is_ignored(value: bytes) -> None:
    verdict = verdict_on(answers(429, b"{}", b"Retry-After: " + value))
    assert isinstance(verdict, Retried)
    assert 0 < verdict.delay <= 0.5


async def test_the_delay_grows_with_the_attempts() -> None:
    async with upstream_that(answers(500)) as upstream:
        settings = HttpSettings(retry=Backoff(minimum=1.0, maximum=8.0))
        async with an_executor(settings, random=lambda: 1.0) as executor:
            items = [an_item(upstream.url, attempt=attempt, max_attempts=9) for attempt in range(1, 6)]
            assert [cast(Retried, await executor.run(item)).delay for item in items] == [
                1.0,
                2.0,
                4.0,
                8.0,
                8.0,
            ]


# --- Faults of the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        pytest.param(says_and_closes(b""), "connection_lost", id="closes before the headers"),
        pytest.param(says_and_closes(CUT_SHORT), "connection_lost", id="closes in the body"),
        pytest.param(says_and_resets(b""), "connection_lost", id="resets before the headers"),
        pytest.param(says_and_resets(CUT_SHORT), "connection_lost", id="resets in the body"),
        pytest.param(
            says_and_closes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\r\n"),
            "connection_lost",
            id="closes in a chunk",
        ),
        pytest.param(
            says_and_closes(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "invalid_response", id="speaks no HTTP"
        ),
        pytest.param(
            answers(200, b"no gzip", b"Content-Encoding: gzip"), "invalid_response", id="false gzip"
        ),
    ],
)
def test_a_request_that_may_have_arrived_counts_as_an_attempt(behaviour: Behaviour, code: str) -> None:
    again = verdict_on(behaviour)
    assert isinstance(again, Retried)
    assert again.error_code == code
    assert again.message
    last = verdict_on(behaviour, attempt=3)
    assert isinstance(last, Failed)
    assert last.status_code is None
    assert line_of(last)["response"] is None
    assert line_of(last)["error"] == {"code": code, "message": again.message}


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(hangs, id="before the headers"),
        pytest.param(says(http(200, b"{}")[:20]), id="in the headers"),
        pytest.param(says(CUT_SHORT), id="in the body"),
    ],
)
def test_a_request_that_hangs_times_out(behaviour: Behaviour) -> None:
    for attempt in (1, 3):
        ran = verdict_on(behaviour, timeout=0.3, attempt=attempt)
        assert isinstance(ran, TimedOut), "the worker judges whether it counts, also at the last attempt"
        assert (ran.error_code, ran.message) == ("timeout", "no complete answer in time")
        assert ran.delay > 0


def test_nothing_waits_much_longer_than_its_batch_has_left() -> None:
    assert isinstance(verdict_on(hangs, timeout=600.0, seconds_left=-5.0), TimedOut)


async def test_a_refused_connection_is_no_attempt_and_can_be_seen() -> None:
    taken, url = an_upstream_that_refuses()
    with taken:
        async with an_executor() as executor:
            verdict = await executor.run(an_item(url, attempt=3))
            assert isinstance(verdict, Deferred)
            assert 0 < verdict.delay <= 0.5
            assert unreachable(executor.upstreams) == {url: "Connection refused"}


async def test_a_failed_connection_is_not_an_attempt() -> None:
    # The handshake of TLS belongs to connecting, and this upstream does not know what we are talking about.
    async with upstream_that(hangs) as upstream:
        url = upstream.url.replace("http:", "https:")
        async with an_executor(HttpSettings(connect_timeout=0.3)) as executor:
            assert isinstance(await executor.run(an_item(url)), Deferred)
            assert unreachable(executor.upstreams) == {url: "the connection timed out"}
        assert upstream.requests == []


async def test_lines_wait_while_no_connection_can_be_made_and_it_is_tried_less_and_less_often(
    log: StringIO,
) -> None:
    time, timers = 0.0, Timers()
    taken, url = an_upstream_that_refuses()
    async with an_executor(clock=lambda: time, random=lambda: 1.0, timer=timers) as executor:
        first = an_item(url)
        assert await executor.run(first) == Deferred(first, 0.5)
        waiting = asyncio.create_task(executor.run(an_item(url)))
        for expected in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            assert await timers.requested.get() == expected
            time += expected
            timers.ring()
        assert await timers.requested.get() == 30.0
        assert log.getvalue().count("upstream unreachable") == 1

        async with upstream_that(answers_well, sock=taken):
            time += 30.0
            timers.ring()
            assert isinstance(await waiting, Completed)
            assert unreachable(executor.upstreams) == {}
        assert log.getvalue().count("upstream available again") == 1

        assert await executor.run(first) == Deferred(first, 0.5)


async def test_a_request_that_waited_while_the_lease_was_lost_is_not_sent() -> None:
    """It waits for the next round of an outage; by then the item may be another worker's."""
    taken, url = an_upstream_that_refuses()
    names, time, timers = ["first"], 0.0, Timers()
    async with an_executor(clock=lambda: time, random=lambda: 1.0, timer=timers) as executor:
        assert isinstance(await executor.run(an_item(url)), Deferred)
        waits = asyncio.Event()

        def fence() -> object:
            waits.set()
            return names[-1]

        executor.fenced_by(fence)
        async with upstream_that(answers_well, sock=taken) as upstream:
            waiting = asyncio.create_task(executor.run(an_item(url)))
            await waits.wait()
            time += await timers.requested.get()
            names.append("second")
            timers.ring()
            assert isinstance(await waiting, Deferred)
            assert "POST" not in {each.method for each in upstream.requests}
            assert isinstance(await executor.run(an_item(url)), Completed)


class Timers:
    """Ring when they are told to."""

    def __init__(self) -> None:
        self.requested: asyncio.Queue[float] = asyncio.Queue()
        self._last = asyncio.timeout(None)

    def __call__(self, seconds: float) -> asyncio.Timeout:
        self.requested.put_nowait(seconds)
        self._last = asyncio.timeout(None)
        return self._last

    def ring(self) -> None:
        self._last.reschedule(0.0)


async def test_a_request_that_waits_for_the_pace_waits_longer_after_another_refusal() -> None:
    async with upstream_that(hangs, answers(429, b"{}", b"Retry-After: 5"), answers_well) as upstream:
        time, timers = 0.0, Timers()
        async with an_executor(clock=lambda: time, timer=timers) as executor, asyncio.timeout(60):
            early = asyncio.create_task(executor.run(an_item(upstream.url)))
            await upstream.arrived.wait()
            assert isinstance(await executor.run(an_item(upstream.url)), Deferred)
            waiting = asyncio.create_task(executor.run(an_item(upstream.url)))
            assert await timers.requested.get() == 5.0

            upstream.connections[0].write(http(429, b"{}", b"Retry-After: 9"))
            assert isinstance(await early, Retried)
            time = 5.0
            timers.ring()
            assert await timers.requested.get() == 4.0
            assert len(upstream.requests) == 2

            time = 9.0
            timers.ring()
            assert isinstance(await waiting, Completed)


async def test_requests_that_wait_for_the_pace_are_deferred_when_the_worker_stops() -> None:
    async with upstream_that(answers(429, b"{}", b"Retry-After: 5"), answers_well) as upstream:
        timers = Timers()
        # Time stands still, so that nothing is due before the worker stops.
        async with an_executor(clock=lambda: 0.0, timer=timers) as executor, asyncio.timeout(60):
            assert isinstance(await executor.run(an_item(upstream.url)), Retried)
            items = [an_item(upstream.url, line_no=n) for n in range(1, 9)]
            waiting = [asyncio.create_task(executor.run(item)) for item in items]
            await timers.requested.get()
            executor.wind_down()
            assert await asyncio.gather(*waiting) == [Deferred(item) for item in items]
            assert len(upstream.requests) == 1


# --- What is not to be sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ", [{}, {"THE_KEY": " \n"}, {"THE_KEY": "no\nheader"}, {"THE_KEY": "schlüssel"}]
)
async def test_nothing_is_sent_without_the_key_that_the_batch_names(
    environ: dict[str, str], log: StringIO
) -> None:
    async with upstream_that(answers_well) as upstream, an_executor(environ=environ) as executor:
        for line_no in (1, 2, 3):
            item = an_item(upstream.url, line_no=line_no, api_key_env="THE_KEY")
            assert await executor.run(item) == Deferred(item, 30.0)
        assert upstream.requests == []
        environ["THE_KEY"] = KEY
        assert isinstance(await executor.run(an_item(upstream.url, api_key_env="THE_KEY")), Completed)
    assert log.getvalue().count("THE_KEY") == 1
    assert "schlüssel" not in log.getvalue()


async def test_a_batch_without_an_upstream_goes_to_the_default_or_waits() -> None:
    async with upstream_that(answers_well) as upstream:
        async with an_executor(upstream=upstream.url) as executor:
            assert isinstance(await executor.run(an_item(None)), Completed)
        async with an_executor() as executor:
            assert await executor.run(an_item(None)) == Deferred(an_item(None), 30.0)
            assert await executor.run(an_item("localhost:8000")) == Deferred(an_item("localhost:8000"), 30.0)


@pytest.mark.parametrize(
    ("upstream", "path", "url"),
    [
        ("http://h:1", "/v1/embeddings", "http://h:1/v1/embeddings"),
        ("http://h:1/", "/v1/embeddings", "http://h:1/v1/embeddings"),
        ("http://h:1/v1", "/v1/embeddings", "http://h:1/v1/embeddings"),
        ("http://h:1/v1/", "/v1/embeddings", "http://h:1/v1/embeddings"),
        ("https://h/openai/v1", "/v1/embeddings", "https://h/openai/v1/embeddings"),
        ("https://h/proxy", "/v1/embeddings", "https://h/proxy/v1/embeddings"),
        ("https://h/v1beta/openai", "/v1/embeddings", "https://h/v1beta/openai/embeddings"),
        ("https://h/api/v3", "/v1/embeddings", "https://h/api/v3/embeddings"),
        ("https://h/vendor", "/v1/embeddings", "https://h/vendor/v1/embeddings"),
        ("https://h/v1?api-version=2", "/v1/embeddings", "https://h/v1/embeddings?api-version=2"),
        ("http://h:1/v1", "/apis/batch/v1/jobs", "http://h:1/v1/apis/batch/v1/jobs"),
    ],
)
def test_the_path_comes_after_the_upstreams_own_without_doubling_the_version(
    upstream: str, path: str, url: str
) -> None:
    assert str(urls.join(upstream, path)) == url


@pytest.mark.parametrize(
    "path",
    [
        "@evil.example/v1",
        "http://evil.example/",
        "",
        ".evil.example/",
        "/v1/../../x",
        "/%2e%2e/%2E%2E/x",
        "\\x",
    ],
)
def test_a_path_cannot_leave_the_upstream(path: str) -> None:
    with pytest.raises(urls.InvalidPath):
        urls.join("http://127.0.0.1:1/openai/v1", path)


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/\\evil.example", "/v1/x?y=1", "/v1/x#y", "/v1/@evil.example"]
)
def test_an_odd_path_stays_a_path_of_the_upstream(path: str) -> None:
    url = urls.join("http://127.0.0.1:1/openai", path)
    assert url.authority == "127.0.0.1:1"
    assert url.path.startswith("/openai/")
    assert url.query_string is None


async def test_an_item_with_a_path_outside_the_upstream_fails_alone() -> None:
    async with upstream_that(answers_well) as upstream:
        async with an_executor() as executor:
            verdict = await executor.run(an_item(f"{upstream.url}/openai", url="/../admin"))
            assert line_of(verdict)["error"]["code"] == "invalid_url"
        assert upstream.requests == []


# --- Secrets -----------------------------------------------------------------------------------------------


def quotes_the_key(status: int) -> Behaviour:
    return answers(status, json.dumps({"error": {"message": f"Incorrect API key: {KEY}."}}).encode())


async def test_the_key_is_in_no_verdict_and_in_no_log(log: StringIO) -> None:
    def fails() -> float:
        raise RuntimeError("no clock")

    async with upstream_that(
        quotes_the_key(401), quotes_the_key(500), hangs, says_and_closes(b"garbage"), quotes_the_key(500)
    ) as upstream:
        options: dict[str, Any] = {"api_key_env": "THE_KEY"}
        taken, refusing = an_upstream_that_refuses()
        with taken:
            async with an_executor(environ={"THE_KEY": KEY}) as executor:
                verdicts = [
                    await executor.run(
                        an_item(upstream.url, timeout=0.3 if each is hangs else 60.0, **options)
                    )
                    for each in upstream.behaviours
                ]
                verdicts.append(await executor.run(an_item(upstream.url, attempt=3, **options)))
                verdicts.append(await executor.run(an_item(refusing, **options)))
                checked = await executor.upstreams.get(refusing).check("THE_KEY")
        async with an_executor(environ={"THE_KEY": KEY}, now=fails) as executor:
            upstream.behaviours.append(answers(500))
            verdicts.append(await executor.run(an_item(upstream.url, **options)))
        assert checked is not None
        assert KEY not in checked
    assert len(verdicts) == 8
    for verdict in verdicts:
        assert KEY not in repr(verdict), f"the key is in {verdict}"
    assert "no clock" in log.getvalue(), "a surprise should be logged with its traceback"
    assert KEY not in log.getvalue()


async def test_a_password_in_the_upstream_is_not_shown(log: StringIO) -> None:
    taken, url = an_upstream_that_refuses()
    with taken:
        async with an_executor() as executor:
            secret = url.replace("http://", "http://user:hunter2@") + "/v1?key=hunter2"
            await executor.run(an_item(secret))
            assert unreachable(executor.upstreams) == {f"{url}/v1": "Connection refused"}
            assert (
                await executor.upstreams.get(secret).check() == f"{url}/v1 is unreachable: Connection refused"
            )
    assert "hunter2" not in log.getvalue()


# --- Surprises ---------------------------------------------------------------------------------------------


class Surprising(dict[str, str]):
    def get(self, *_: object) -> str:
        raise RuntimeError("what nobody expected")


async def test_a_surprise_is_a_verdict_on_its_item_alone(log: StringIO) -> None:
    async with upstream_that(answers_well) as upstream:
        async with an_executor(environ=Surprising()) as executor:
            surprised, last, sibling = await asyncio.gather(
                executor.run(an_item(upstream.url, api_key_env="THE_KEY")),
                executor.run(an_item(upstream.url, api_key_env="THE_KEY", attempt=3)),
                executor.run(an_item(upstream.url)),
            )
        assert isinstance(surprised, Retried)
        assert surprised.error_code == "internal_error"
        assert line_of(last)["error"]["code"] == "internal_error"
        assert isinstance(sibling, Completed)
    assert "what nobody expected" in log.getvalue()


async def test_cancellation_is_not_a_verdict() -> None:
    async with upstream_that(hangs) as upstream, an_executor() as executor:
        running = asyncio.ensure_future(executor.run(an_item(upstream.url)))
        await upstream.arrived.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_what_is_under_way_when_the_executor_closes_keeps_its_attempt() -> None:
    async with upstream_that(hangs) as upstream, an_executor() as executor:
        item = an_item(upstream.url)
        running = asyncio.ensure_future(executor.run(item))
        await upstream.arrived.wait()
        await executor.close()
        assert await running == Deferred(item)
        assert await executor.run(item) == Deferred(item)


async def test_it_is_an_executor() -> None:
    executor: Executor = HttpExecutor()
    await executor.close()


# --- The check before a run --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 302, 404, 405, 429, 500])
async def test_any_answer_means_that_the_upstream_is_there(status: int) -> None:
    async with upstream_that(answers(status, b"{}")) as upstream:
        async with an_executor() as executor:
            assert await executor.upstreams.get(f"{upstream.url}/v1").check() is None
        assert [(request.method, request.path) for request in upstream.requests] == [("GET", "/v1/models")]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_refused_is_found_before_the_run(status: int) -> None:
    async with upstream_that(answers(status)) as upstream, an_executor(environ={"THE_KEY": KEY}) as executor:
        refused = f"{upstream.url} refuses the API key in THE_KEY ({status})"
        assert await executor.upstreams.get(upstream.url).check("THE_KEY") == refused
        wanted = await executor.upstreams.get(upstream.url).check()
        assert wanted is not None
        assert wanted.startswith(f"{upstream.url} requires an API key ({status})")
        missing = await executor.upstreams.get(upstream.url).check("NO_KEY")
        assert missing == "the environment variable NO_KEY, which should hold the API key, is not set"


@pytest.mark.parametrize(("status", "missing"), [(200, False), (404, True), (405, True), (500, False)])
async def test_a_missing_batch_api_is_found_before_the_run(status: int, missing: bool) -> None:
    async with upstream_that(answers(status)) as upstream, an_executor() as executor:
        found = await executor.upstreams.get(upstream.url).check(batches="/v1/batches")
    reason = f"{upstream.url} has no batch API (GET /v1/batches answers {status}): use --via direct"
    assert found == (reason if missing else None)


async def test_an_upstream_without_tls_is_told_apart_from_one_that_is_down() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, an_executor() as executor:
        trouble = await executor.upstreams.get(url).check()
    assert trouble == (
        f"{url} is unreachable: the server does not speak TLS; try http:// instead of https://"
    )


async def test_an_unreachable_upstream_is_reported_before_the_run() -> None:
    async with upstream_that(hangs) as upstream:
        taken, url = an_upstream_that_refuses()
        with taken:
            async with an_executor() as executor:
                assert (
                    await executor.upstreams.get(url).check() == f"{url} is unreachable: Connection refused"
                )
            async with an_executor(HttpSettings(connect_timeout=60.0, check_timeout=0.3)) as executor:
                assert (
                    await executor.upstreams.get(upstream.url).check()
                    == f"{upstream.url} did not answer within 0.3 s"
                )
                assert (
                    await executor.upstreams.get("localhost:8000").check()
                    == "the upstream localhost:8000 does not begin with http:// or https://"
                )


@pytest.mark.parametrize("status", [400, 503])
def test_a_failed_attempt_has_the_usage_that_the_upstream_reports(status: int) -> None:
    verdict = verdict_on(answers(status, b'{"error": {}, "usage": {"prompt_tokens": 7}}'))
    assert isinstance(verdict, Failed | Retried)
    assert verdict.usage == Usage(input_tokens=7)
