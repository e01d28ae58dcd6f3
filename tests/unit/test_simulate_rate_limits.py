"""Limits of requests and tokens of the simulated upstream, and the headers about them."""

import pytest

from batchline.simulate.answers import tokens_of
from batchline.simulate.rate_limits import _duration
from batchline.simulate.recipes import RecipeReader
from tests.support.simulated_client import CHAT, Answer, chat
from tests.support.stepped_upstream import simulating

pytestmark = pytest.mark.uvloop


def limits(answer: Answer, what: str) -> tuple[str, ...]:
    return tuple(answer.headers[f"x-ratelimit-{kind}-{what}"] for kind in ("limit", "remaining", "reset"))


async def test_answers_and_refusals_say_how_much_of_the_limit_is_left() -> None:
    async with simulating(rate_limit=2) as upstream:
        answers = [await upstream.answer(str(number)) for number in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [limits(answer, "requests") for answer in answers] == [
            ("120", "1", "500ms"),
            ("120", "0", "1s"),
            ("120", "0", "1s"),
        ]
        assert float(answers[2].headers["retry-after"]) == 0.5
        upstream.timers.advance(0.5)
        assert (await upstream.answer("again")).status == 200


async def test_without_a_limit_no_header_is_sent() -> None:
    async with simulating() as upstream:
        answer = await upstream.answer()
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_tokens_beyond_the_limit_are_refused_until_as_many_have_passed() -> None:
    cost = tokens_of(RecipeReader(0).read(CHAT.encode(), chat("x" * 40, max_tokens=5)))
    assert cost == (await usage()) > 0
    # Two such requests per second.
    async with simulating(token_limit=cost * 2 * 60) as upstream:
        statuses = [(await upstream.answer("x" * 40, max_tokens=5)).status for _ in range(2)]
        refused = await upstream.answer("x" * 40, max_tokens=5)
        assert (statuses, refused.status) == ([200, 200], 429)
        assert refused.json["error"]["type"] == "tokens"
        assert limits(refused, "tokens") == (str(cost * 120), "0", "1s")
        assert (await upstream.http.stats())["executed"] == 2
        upstream.timers.advance(float(refused.headers["retry-after"]))
        assert (await upstream.answer("x" * 40, max_tokens=5)).status == 200


async def usage() -> int:
    async with simulating() as upstream:
        found: int = (await upstream.answer("x" * 40, max_tokens=5)).json["usage"]["total_tokens"]
        return found


async def test_a_request_with_more_tokens_than_a_second_has_passes_alone_and_others_wait_for_it() -> None:
    async with simulating(token_limit=60) as upstream:
        assert (await upstream.answer("x" * 400)).status == 200
        refused = await upstream.answer("x" * 400)
        assert refused.status == 429
        assert float(refused.headers["retry-after"]) > 100


async def test_a_request_that_one_limit_refuses_uses_nothing_of_the_other() -> None:
    async with simulating(rate_limit=2, token_limit=60) as upstream:
        first = await upstream.answer("x" * 400)
        assert (await upstream.answer("x" * 400)).status == 429
        assert limits(first, "requests")[1] == "1"
        assert limits(await upstream.answer("x" * 400), "requests")[1] == "1"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.0121, "13ms"), (0.9999, "1s"), (3.25, "3.25s"), (60, "1m0s"), (361.5, "6m1.5s")],
)
def test_durations_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert _duration(seconds) == written
