"""The simulated upstream, proved over its sockets; its dice and its bucket also by themselves."""

import asyncio
import base64
import hashlib
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from batchline.simulate import SimulateSettings, Simulator, answer_to
from batchline.simulate.faults import FaultDice, InjectedFault, TokenBucket
from batchline.simulate.http import MAX_BODY, Connection, ReceivedRequest
from batchline.simulate.routes import Routes
from batchline.simulate.tasks import SimulatedTasks
from batchline.simulate.upstream import SimulatedUpstream
from tests.support.held_timers import HeldTimers
from tests.support.simulated_client import CHAT, DEADLINE_S, Upstream, chat, request

pytestmark = pytest.mark.uvloop


def a_simulator(settings: SimulateSettings, timers: HeldTimers | None = None) -> Simulator:
    """With timers, the latency of a request lasts until the test lets it go."""
    if timers is None:
        return Simulator(settings)
    upstream = SimulatedUpstream(settings, cast(Any, timers))
    return Simulator(settings, lambda loop: Routes(settings, upstream, SimulatedTasks(settings, loop)).handle)


@asynccontextmanager
async def simulating(timers: HeldTimers | None = None, **settings: Any) -> AsyncIterator[Upstream]:
    simulator = a_simulator(SimulateSettings(**settings), timers)
    upstream = Upstream(*await simulator.start())
    try:
        yield upstream
    finally:
        await upstream.close_clients()
        await simulator.stop()


# --- Answers -----------------------------------------------------------------------------------------------

BODIES = {
    "/v1/chat/completions": chat(),
    "/v1/completions": b'{"model":"m","prompt":"hi"}',
    "/v1/embeddings": b'{"model":"m","input":"hi"}',
    "/v1/responses": b'{"model":"m","input":"hi"}',
}


@pytest.mark.parametrize("path", BODIES)
async def test_same_body_and_seed_give_the_same_bytes_on_any_simulator(path: str) -> None:
    async with simulating(seed=7) as one, simulating(seed=7) as two, simulating(seed=8) as other:
        first = await one.post(BODIES[path], path=path)
        assert first.status == 200
        assert (await one.post(BODIES[path], path=path)) == first
        assert (await two.post(BODIES[path], path=path)) == first
        assert (await one.post(BODIES[path], path=path.removeprefix("/v1"))) == first
        assert answer_to(path, BODIES[path], seed=7) == first.body
        assert (await other.post(BODIES[path], path=path)).body != first.body


def test_another_body_gets_another_answer() -> None:
    assert answer_to(CHAT, chat("one")) != answer_to(CHAT, chat("two"))


def test_chat_answer_has_the_shape_of_openai() -> None:
    answer = json.loads(answer_to(CHAT, chat("hi", n=2)))
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "m"
    assert isinstance(answer["created"], int)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_completion_answer_has_a_choice_for_each_prompt() -> None:
    answer = json.loads(answer_to("/v1/completions", b'{"model":"m","prompt":["a","b","c"]}'))
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert all(choice["text"] for choice in answer["choices"])


def test_response_answer_has_the_shape_and_names_of_openai() -> None:
    answer = json.loads(answer_to("/v1/responses", b'{"model":"m","input":"hi"}'))
    usage = answer["usage"]
    assert (answer["object"], answer["status"]) == ("response", "completed")
    assert answer["output"][0]["content"][0]["type"] == "output_text"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


def test_response_cut_by_max_output_tokens_is_incomplete() -> None:
    answer = json.loads(answer_to("/v1/responses", b'{"model":"m","input":"hi","max_output_tokens":3}'))
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["output_tokens"] == 3


def test_usage_grows_with_the_prompt_and_stays_within_max_tokens() -> None:
    usages = [
        json.loads(answer_to(CHAT, chat("x" * size, max_tokens=20)))["usage"] for size in range(0, 8000, 80)
    ]
    prompts = [usage["prompt_tokens"] for usage in usages]
    assert prompts == sorted(prompts)
    assert prompts[0] < prompts[-1]
    assert all(0 < usage["completion_tokens"] <= 20 for usage in usages)
    assert all(
        usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages
    )
    assert any(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert any(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages)


def test_embeddings_are_unit_vectors_one_for_each_input_in_either_encoding() -> None:
    requested: dict[str, Any] = {"model": "m", "input": ["a", "b", "c"], "dimensions": 5}
    answer = json.loads(answer_to("/v1/embeddings", json.dumps(requested).encode()))
    vectors = [item["embedding"] for item in answer["data"]]
    assert [len(vector) for vector in vectors] == [5, 5, 5]
    assert [sum(part * part for part in vector) for vector in vectors] == pytest.approx([1, 1, 1], abs=1e-6)
    packed = json.loads(
        answer_to("/v1/embeddings", json.dumps(requested | {"encoding_format": "base64"}).encode())
    )
    assert [len(base64.b64decode(item["embedding"])) for item in packed["data"]] == [20, 20, 20]
    first = struct.unpack("<5f", base64.b64decode(packed["data"][0]["embedding"]))
    assert sum(part * part for part in first) == pytest.approx(1, abs=1e-6)


def test_an_array_of_tokens_is_one_input_of_as_many_tokens() -> None:
    answer = json.loads(answer_to("/v1/embeddings", b'{"model":"m","input":[1,2,3]}'))
    assert len(answer["data"]) == 1
    assert len(answer["data"][0]["embedding"]) == 8
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_the_first_answers_of_a_chat_are_bad_however_its_messages_are_written() -> None:
    user = {"role": "user", "content": "?"}
    async with simulating(answer="good", bad_answers=1) as upstream:
        for separators in ((",", ":"), (", ", " : ")):
            for messages, good in (([user], False), ([user, user], True)):
                body = json.dumps({"model": "m", "messages": messages}, separators=separators).encode()
                answer = json.loads((await upstream.post(body)).body)
                assert (answer["choices"][0]["message"]["content"] == "good") is good


async def test_models_lists_what_the_settings_name() -> None:
    async with simulating(models=("a", "b")) as upstream:
        for path in ("/v1/models", "/models"):
            listed = (await upstream.get(path)).json
            assert [model["id"] for model in listed["data"]] == ["a", "b"]


# --- Refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"nonsense", None),
        (b"[1]", None),
        (b'{"model":"m"} and more', None),
        (b'{"model":"m","messages":"\xff"}', None),
        (b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'{"messages":[]}', "model"),
        (b'{"model":3}', "model"),
        (b'{"model":"m","max_tokens":"many"}', "max_tokens"),
        (b'{"model":"m","stream":true}', "stream"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_body_that_openai_would_refuse_gets_400_and_is_not_executed(
    body: bytes, param: str | None
) -> None:
    async with simulating() as upstream:
        answer = await upstream.post(body, key="k")
        assert answer.status == 400
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert answer.json["error"]["param"] == param
        stats = await upstream.stats()
        assert (stats["executed"], stats["distinct_keys"], stats["by_status"]) == (0, 0, {"400": 1})


async def test_unknown_paths_get_404_and_wrong_methods_405() -> None:
    async with simulating() as upstream:
        answers = {
            ("GET", "/nowhere"): 404,
            ("POST", "/v1/nowhere"): 404,
            ("GET", CHAT): 405,
            ("DELETE", "/v1/models"): 405,
            ("HEAD", "/stats"): 405,
            ("POST", "/stats"): 405,
            ("GET", "/reset"): 405,
            ("GET", "/executions"): 404,
            ("GET", "/stats?pretty=1"): 200,
        }
        for (method, path), status in answers.items():
            answer = await upstream.get(path, method)
            assert answer.status == status, f"{method} {path}"
            if status != 200 and method != "HEAD":
                assert set(answer.json["error"]) == {"message", "type", "param", "code"}


async def test_oversized_body_gets_413_before_it_is_sent() -> None:
    async with simulating() as upstream:
        client = await upstream.connect()
        client.send(f"POST {CHAT} HTTP/1.1\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        assert await client.closed_by_server()


async def test_oversized_chunked_body_gets_413_though_the_client_keeps_sending() -> None:
    async with simulating() as upstream:
        client = await upstream.connect()
        client.send(f"POST {CHAT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        mebibyte = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        for _ in range(MAX_BODY // (1 << 20) + 8):
            client.send(mebibyte)
            await client.writer.drain()
        assert (await client.answer()).status == 413
        assert (await upstream.stats())["executed"] == 0


async def test_malformed_http_gets_400_after_what_came_before_it_is_answered() -> None:
    async with simulating(latency_ms=20) as upstream:
        client = await upstream.connect()
        client.send(request(chat()) + b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.closed_by_server()


async def test_key_too_long_to_remember_gets_400() -> None:
    async with simulating() as upstream:
        assert (await upstream.post(chat(), key="k" * 255)).status == 200
        assert (await upstream.post(chat(), key="k" * 256)).status == 400
        assert (await upstream.stats())["executed"] == 1


# --- HTTP --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_ms", [0, 1])
async def test_pipelined_requests_are_answered_in_order(latency_ms: int) -> None:
    async with simulating(latency_ms=latency_ms) as upstream:
        bodies = [chat(f"question {number}") for number in range(100)]
        client = await upstream.connect()
        client.send(b"".join(request(body) for body in bodies))
        answers = [(await client.answer()).body for _ in bodies]
        assert answers == [answer_to(CHAT, body) for body in bodies]


async def test_pipeline_of_thousands_behind_a_slow_request_is_answered() -> None:
    async with simulating(latency_ms=50) as upstream:
        client = await upstream.connect()
        client.send(request(chat()) + b"GET /v1/models HTTP/1.1\r\n\r\n" * 3000)
        answers = [await client.answer() for _ in range(3001)]
        assert "choices" in answers[0].json
        assert all(answer.json["object"] == "list" for answer in answers[1:])


async def test_chunked_body_is_answered_like_one_with_a_length() -> None:
    async with simulating() as upstream:
        client = await upstream.connect()
        body = chat()
        chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
        head = f"POST {CHAT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        client.send((head + chunks) * 2)
        assert [(await client.answer()).body for _ in range(2)] == [answer_to(CHAT, body)] * 2


@pytest.mark.parametrize("latency_ms", [0, 20])
async def test_client_that_expects_100_continue_gets_it_when_its_request_is_executed(latency_ms: int) -> None:
    async with simulating(latency_ms=latency_ms) as upstream:
        client = await upstream.connect()
        body = chat("second")
        head = f"POST {CHAT} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(request(chat("first")) + head.encode())
        assert (await client.answer()).body == answer_to(CHAT, chat("first"))
        assert (await client.answer()).status == 100
        client.send(body)
        assert (await client.answer()).body == answer_to(CHAT, body)


async def test_connection_is_closed_after_the_answer_if_the_client_requests_it() -> None:
    async with simulating(latency_ms=1) as upstream:
        for head in (f"POST {CHAT} HTTP/1.1\r\nConnection: close\r\n", f"POST {CHAT} HTTP/1.0\r\n"):
            client = await upstream.connect()
            client.send(f"{head}Content-Length: {len(chat())}\r\n\r\n".encode() + chat())
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.closed_by_server()


async def test_request_to_upgrade_is_answered_in_http_and_the_connection_closed() -> None:
    async with simulating() as upstream:
        client = await upstream.connect()
        client.send(b"GET /v1/models HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nframes")
        assert (await client.answer()).json["object"] == "list"
        assert await client.closed_by_server()


class Valve(asyncio.Transport):
    """A transport that only knows whether it is read from."""

    open = True

    def pause_reading(self) -> None:
        self.open = False

    def resume_reading(self) -> None:
        self.open = True


class Nobody:
    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...


async def test_request_that_arrives_byte_by_byte_is_read_whole() -> None:
    read: list[ReceivedRequest] = []
    connection = Connection(lambda _, request: read.append(request), Nobody(), asyncio.get_running_loop())
    connection.connection_made(Valve())
    for byte in request(chat(), key="k"):
        connection.data_received(bytes([byte]))
    assert read == [ReceivedRequest(b"POST", CHAT.encode(), b"k", chat(), keep_alive=True)]


async def test_client_is_not_read_from_while_it_does_not_read_or_is_far_ahead_of_its_answers() -> None:
    valve = Valve()
    connection = Connection(lambda connection, request: None, Nobody(), asyncio.get_running_loop())
    connection.connection_made(valve)
    connection.pause_writing()
    assert not valve.open
    connection.resume_writing()
    assert valve.open
    connection.data_received(request(chat()) * 100)
    assert not valve.open


# --- Idempotency -------------------------------------------------------------------------------------------


async def test_key_that_ran_is_replayed_and_not_run_again() -> None:
    async with simulating() as upstream:
        first = await upstream.post(chat("one"), key="k")
        assert await upstream.post(chat("one"), key="k") == first
        assert await upstream.post(chat("two"), key="k") == first, "the key decides, not the body"
        stats = await upstream.stats()
        assert (stats["requests"], stats["executed"], stats["replays"]) == (3, 1, 2)
        assert (stats["distinct_keys"], stats["keys_executed_twice"]) == (1, 0)


async def test_duplicates_of_a_running_key_wait_for_its_one_execution() -> None:
    async with simulating(latency_ms=100, concurrency=1) as upstream:
        answers = await asyncio.gather(*(upstream.post(chat(), key="k") for _ in range(20)))
        assert {answer.body for answer in answers} == {answer_to(CHAT, chat())}
        stats = await upstream.stats()
        assert (stats["executed"], stats["replays"], stats["keys_executed_twice"]) == (1, 19, 0)


async def test_requests_without_a_key_run_each_time() -> None:
    async with simulating() as upstream:
        for _ in range(3):
            await upstream.post(chat())
        stats = await upstream.stats()
        assert (stats["executed"], stats["distinct_keys"], stats["replays"]) == (3, 0, 0)


async def test_client_that_leaves_in_mid_execution_finds_its_result_under_its_key() -> None:
    timers = HeldTimers()
    async with simulating(timers, latency_ms=500) as upstream:
        client = await upstream.connect()
        client.send(request(chat(), key="k"))
        await upstream.until(lambda stats: stats["in_flight"] == 1)
        await client.close()
        # What was closed before is noticed before.
        await upstream.stats()
        timers.let_go()
        stats = await upstream.stats()
        assert stats["executed"] == 1
        assert stats["by_status"] == {}, "nobody was there to be answered"
        assert (await upstream.post(chat(), key="k")).body == answer_to(CHAT, chat())
        stats = await upstream.stats()
        assert (stats["executed"], stats["replays"], stats["by_status"]) == (1, 1, {"200": 1})


async def test_oldest_key_is_forgotten_beyond_max_keys() -> None:
    async with simulating(max_keys=2) as upstream:
        for key in ("a", "b", "c", "b", "c", "a"):
            await upstream.post(chat(), key=key)
        stats = await upstream.stats()
        assert (stats["executed"], stats["replays"]) == (4, 2)


# --- Limits ------------------------------------------------------------------------------------------------


async def test_requests_beyond_the_rate_get_429_with_retry_after_and_are_not_executed() -> None:
    async with simulating(rate_limit=0.001) as upstream:
        assert (await upstream.post(chat(), key="a")).status == 200
        refused = await upstream.post(chat(), key="b")
        assert refused.status == 429
        assert 0 < float(refused.headers["retry-after"]) <= 1000
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert (await upstream.post(chat(), key="a")).status == 200, "a replay costs nothing"
        stats = await upstream.stats()
        assert (stats["executed"], stats["distinct_keys"]) == (1, 1)
        assert stats["by_status"] == {"200": 2, "429": 1}


def test_a_client_that_waits_as_long_as_the_bucket_says_is_admitted() -> None:
    now = 100.0
    bucket = TokenBucket(rate=3, clock=lambda: now)
    assert [bucket.wait_s() for _ in range(3)] == [0, 0, 0]
    wait_s = bucket.wait_s()
    assert wait_s == pytest.approx(1 / 3, abs=0.001)
    now += wait_s
    assert bucket.wait_s() == 0
    assert bucket.wait_s() > 0


async def test_requests_beyond_the_concurrency_queue() -> None:
    async with simulating(latency_ms=20, jitter_ms=10, concurrency=3) as upstream:
        answers = await asyncio.gather(*(upstream.post(chat(str(number))) for number in range(30)))
        assert [answer.body for answer in answers] == [
            answer_to(CHAT, chat(str(number))) for number in range(30)
        ]
        stats = await upstream.stats()
        assert (stats["peak_in_flight"], stats["in_flight"], stats["executed"]) == (3, 0, 30)


async def test_queued_requests_run_in_the_order_of_their_arrival() -> None:
    async with simulating(latency_ms=30, concurrency=1, record=True) as upstream:
        keys = [f"line-{number}" for number in range(8)]
        for number, key in enumerate(keys):
            client = await upstream.connect()
            client.send(request(chat(), key=key))
            await upstream.until_received(number + 1)
        await upstream.until(lambda stats: stats["executed"] == len(keys))
        executions = (await upstream.get("/executions")).body.splitlines()
        assert [json.loads(line)["key"] for line in executions] == keys


async def test_keyless_requests_are_dropped_when_their_client_leaves_and_never_replayed() -> None:
    timers = HeldTimers()
    async with simulating(timers, latency_ms=1000, concurrency=1, keyless=True) as upstream:
        for number in range(5):
            client = await upstream.connect()
            client.send(request(chat(), key="k"))
            await upstream.until_received(number + 1)
            if number:
                client.writer.close()
        last = await upstream.connect()
        last.send(request(chat(), key="k"))
        # What was closed before is noticed before.
        await upstream.until_received(6)
        timers.let_go()
        assert (await last.answer()).status == 200
        stats = await upstream.stats()
        assert (stats["executed"], stats["replays"]) == (2, 0), "the first, which is at work, and the last"


async def test_hundreds_of_connections_wait_out_their_latency_at_the_same_time() -> None:
    async with simulating(latency_ms=300) as upstream:
        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(upstream.post(chat(str(number))) for number in range(200)))
        assert {answer.status for answer in answers} == {200}
        assert asyncio.get_running_loop().time() - began < 59, "one after the other would take a minute"


# --- Faults ------------------------------------------------------------------------------------------------


def test_dice_of_one_seed_throw_the_same_faults_in_the_same_shares() -> None:
    def throws(seed: int) -> list[InjectedFault | None]:
        dice = FaultDice(
            SimulateSettings(seed=seed, error_rate=0.2, refuse_rate=0.1, hang_rate=0.1, drop_rate=0.2)
        )
        return [dice.throw() for _ in range(10_000)]

    assert throws(1) == throws(1)
    assert throws(1) != throws(2)
    shares = {fault: throws(1).count(fault) / 10_000 for fault in (*InjectedFault, None)}
    assert shares == pytest.approx(dict.fromkeys(InjectedFault, 0.1) | {None: 0.4}, abs=0.02)


async def test_faults_of_one_seed_come_in_the_same_sequence() -> None:
    async def outcomes(seed: int) -> list[object]:
        async with simulating(seed=seed, error_rate=0.4, drop_rate=0.3) as upstream:
            return [await outcome(upstream, chat(str(number))) for number in range(60)]

    first = await outcomes(3)
    assert set(first) == {200, 500, 503, "dropped"}
    assert await outcomes(3) == first
    assert await outcomes(4) != first


async def outcome(upstream: Upstream, body: bytes, key: str | None = None) -> object:
    try:
        return (await upstream.post(body, key=key)).status
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return "dropped"


async def test_injected_errors_are_not_executed_and_not_remembered() -> None:
    async with simulating(error_rate=1) as upstream:
        answers = [await upstream.post(chat(), key="k") for _ in range(20)]
        assert {answer.status for answer in answers} == {500, 503}
        assert set(answers[0].json["error"]) == {"message", "type", "param", "code"}
        stats = await upstream.stats()
        assert (stats["executed"], stats["distinct_keys"], stats["replays"]) == (0, 0, 0)


async def test_refused_requests_get_429_without_retry_after_and_are_not_executed() -> None:
    async with simulating(refuse_rate=1) as upstream:
        answer = await upstream.post(chat(), key="k")
        assert (answer.status, answer.headers.get("retry-after")) == (429, None)
        assert (await upstream.stats())["executed"] == 0


async def test_half_of_the_dropped_requests_were_executed_and_are_replayed() -> None:
    async with simulating(drop_rate=1) as upstream:
        keys = [f"line-{number}" for number in range(40)]
        assert [await outcome(upstream, chat(), key) for key in keys] == ["dropped"] * 40
        executed = (await upstream.stats())["executed"]
        assert 10 <= executed <= 30
        again = [await outcome(upstream, chat(), key) for key in keys]
        assert again.count(200) == executed
        assert (await upstream.stats())["keys_executed_twice"] == 0


async def test_request_that_hangs_is_neither_answered_nor_executed_and_its_connection_stays() -> None:
    async with simulating(hang_rate=1) as upstream:
        client = await upstream.connect()
        client.send(request(chat(), key="k") * 40)
        stats = await upstream.until_received(1)
        assert (stats["executed"], stats["in_flight"], stats["by_status"]) == (0, 0, {})
        assert not client.reader.at_eof()


async def test_connection_that_hangs_is_read_on_so_that_its_end_is_noticed() -> None:
    valve = Valve()
    connection = Connection(lambda connection, _: connection.hang(), Nobody(), asyncio.get_running_loop())
    connection.connection_made(valve)
    connection.data_received(request(chat()) * 100)
    assert valve.open


# --- Stats -------------------------------------------------------------------------------------------------


async def test_stats_have_exactly_their_keys_and_count_posts_only() -> None:
    async with simulating() as upstream:
        await upstream.get("/v1/models")
        await upstream.post(chat(), key="k")
        assert await upstream.stats() == {
            "requests": 1,
            "executed": 1,
            "distinct_keys": 1,
            "replays": 0,
            "by_status": {"200": 1},
            "in_flight": 0,
            "peak_in_flight": 1,
            "waiting": 0,
            "refused_late": 0,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "keys_executed_twice": 0,
            "tasks": {
                "accepted": 0,
                "submissions": 0,
                "replays": 0,
                "polls": 0,
                "lost_answers": 0,
                "refused": 0,
                "cancelled": 0,
                "keys_with_two_tasks": 0,
            },
            "message_batches": {"batches": 0, "requests": 0, "requests_twice": 0},
        }


async def test_reset_forgets_counts_and_keys_and_what_was_under_way() -> None:
    timers = HeldTimers()
    async with simulating(timers, latency_ms=500) as upstream:
        client = await upstream.connect()
        client.send(request(chat(), key="k"))
        await upstream.until(lambda stats: stats["in_flight"] == 1)
        assert (await upstream.get("/reset", "POST")).status == 200
        timers.let_go()
        assert (await client.answer()).status == 200
        stats = await upstream.stats()
        assert (stats["requests"], stats["executed"], stats["distinct_keys"]) == (0, 0, 0)
        assert stats["by_status"] == {}
        await upstream.post(chat(), key="k")
        stats = await upstream.stats()
        assert (stats["executed"], stats["replays"], stats["keys_executed_twice"]) == (1, 0, 0)


async def test_executions_stream_a_line_for_each_execution() -> None:
    async with simulating(record=True) as upstream:
        bodies = {f"line-{number}": chat(str(number)) for number in range(2500)}
        client = await upstream.connect()
        client.send(
            b"".join(request(body, key=key, path="/chat/completions") for key, body in bodies.items())
        )
        for _ in bodies:
            await client.answer()
        client.send(b"GET /executions HTTP/1.1\r\n\r\nGET /stats HTTP/1.1\r\n\r\n")
        lines = [json.loads(line) for line in (await client.answer()).body.splitlines()]
        assert lines == [
            {"key": key, "path": CHAT, "sha256": hashlib.sha256(body).hexdigest()}
            for key, body in bodies.items()
        ]
        assert (await client.answer()).json["executed"] == 2500


# --- Life --------------------------------------------------------------------------------------------------


async def test_stop_closes_idle_connections_and_answers_what_is_under_way() -> None:
    timers = HeldTimers()
    simulator = a_simulator(SimulateSettings(latency_ms=500), timers)
    upstream = Upstream(*await simulator.start())
    idle, busy = await upstream.connect(), await upstream.connect()
    busy.send(request(chat()))
    await upstream.until(lambda stats: stats["in_flight"] == 1)
    stopping = asyncio.create_task(simulator.stop(grace_s=3600))
    assert await idle.closed_by_server()
    timers.let_go()
    _, answer = await asyncio.gather(stopping, busy.answer())
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    with pytest.raises(OSError, match=r"refused|failed"):
        await upstream.connect()
    await upstream.close_clients()


async def test_stop_disconnects_requests_that_hang_or_exceed_the_grace_period() -> None:
    for settings, grace_s in (
        (SimulateSettings(hang_rate=1), 3600),
        (SimulateSettings(latency_ms=3_600_000), 0.01),
    ):
        simulator = Simulator(settings)
        upstream = Upstream(*await simulator.start())
        client = await upstream.connect()
        client.send(request(chat()))
        await upstream.until_received(1)
        async with asyncio.timeout(DEADLINE_S):
            await simulator.stop(grace_s)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.answer()
        await upstream.close_clients()


async def test_simulator_runs_on_the_plain_asyncio_loop_too() -> None:
    async with simulating(latency_ms=1) as upstream:
        assert (await upstream.post(chat())).body == answer_to(CHAT, chat())


@pytest.mark.parametrize(
    "wrong",
    [{"latency_ms": -1}, {"error_rate": 1.5}, {"error_rate": 0.6, "drop_rate": 0.6}, {"max_keys": 0}],
    ids=str,
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SimulateSettings(**wrong)
