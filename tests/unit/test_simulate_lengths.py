"""Latency that depends on length, and the prefix cache of the simulated upstream."""

from typing import Any

import pytest

from batchline.simulate.prefix_cache import BLOCK_TOKENS, PrefixCache, prompt_of
from tests.support.simulated_client import chat
from tests.support.stepped_upstream import SteppedUpstream, simulating

pytestmark = pytest.mark.uvloop

BLOCK = 64  # bytes


async def milliseconds(upstream: SteppedUpstream, text: str, **fields: Any) -> int:
    """How long an answer takes, in steps of a millisecond."""
    executed = (await upstream.http.stats())["executed"]
    client = await upstream.send(text, **fields)
    passed = 0
    while (await upstream.http.stats())["executed"] == executed:
        upstream.timers.advance(0.001)
        passed += 1
    assert (await client.answer()).status == 200
    return passed


async def test_each_token_of_an_answer_adds_its_time() -> None:
    async with simulating(token_latency_ms=1) as upstream:
        # Answers have 8 tokens or more.
        assert await milliseconds(upstream, "one", max_tokens=3) == 3
        assert await milliseconds(upstream, "two", max_tokens=7) == 7
        assert await milliseconds(upstream, "two", max_tokens=7, n=4) == 7, "choices are written together"


async def test_each_token_of_a_prompt_adds_its_time() -> None:
    async with simulating(prompt_latency_ms=1) as upstream:
        short = await milliseconds(upstream, "", max_tokens=1)
        assert await milliseconds(upstream, "x" * 40, max_tokens=1) == short + 10


async def test_a_prompt_whose_beginning_was_seen_takes_less_time_and_the_hits_are_counted() -> None:
    async with simulating(prompt_latency_ms=1, prefix_cache=100) as upstream:
        first = await milliseconds(upstream, "x" * 400 + "one")
        again = await milliseconds(upstream, "x" * 400 + "two")
        other = await milliseconds(upstream, "y" * 400 + "two")
        assert again < first == other
        stats = await upstream.http.stats()
        assert stats["cached_tokens"] == first - again
        assert stats["prompt_tokens"] == 2 * first + other


def test_what_was_not_used_for_longest_is_forgotten_first_and_a_prompt_from_its_end() -> None:
    cache = PrefixCache(max_blocks=4)
    one, two = b"1" * BLOCK * 3, b"2" * BLOCK * 2
    assert [cache.enter(one), cache.enter(one)] == [0, 2 * BLOCK_TOKENS]
    cache.enter(two)
    assert cache.enter(two) == BLOCK_TOKENS
    assert cache.enter(one) == BLOCK_TOKENS, "its last block made room"


def test_blocks_count_only_after_the_same_beginning_and_only_if_they_are_full() -> None:
    cache = PrefixCache(max_blocks=100)
    same = b"s" * BLOCK
    cache.enter(b"a" * BLOCK + same + same)
    assert cache.enter(b"b" * BLOCK + same + same) == 0
    assert cache.enter(b"a" * BLOCK + same + same[:-1]) == BLOCK_TOKENS


def test_prompts_of_different_models_have_nothing_in_common() -> None:
    cache = PrefixCache(max_blocks=100)
    assert cache.enter(prompt_of(chat("x" * 400, model="a"))) == 0
    assert cache.enter(prompt_of(chat("x" * 400, model="b"))) == 0
    assert cache.enter(prompt_of(chat("x" * 400, model="a"))) > 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"%b"}',
        b'{"model":"m","input":["%b"]}',
        b'{"model":"m","input":"?","instructions":"%b"}',
        b'{"model":"m","input":"%b","instructions":null}',
    ],
)
def test_prompts_of_all_endpoints_are_cached(body: bytes) -> None:
    cache = PrefixCache(max_blocks=100)
    cache.enter(prompt_of(body % (b"x" * 400)))
    assert cache.enter(prompt_of(body % (b"x" * 400 + b"y"))) >= 300 // 4
