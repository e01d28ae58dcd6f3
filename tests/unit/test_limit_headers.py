"""Rate-limit headers: what they allow, and that wrong ones stop nobody."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.upstreams.limit_headers import ProviderRate, provider_rates

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()


def rates(unit: str = "requests", **headers: str) -> list[ProviderRate]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return list(provider_rates(named.get, unit, NOW))


def openai(limit: str, remaining: str, reset: str) -> list[ProviderRate]:
    return rates(
        x_ratelimit_limit_requests=limit,
        x_ratelimit_remaining_requests=remaining,
        x_ratelimit_reset_requests=reset,
    )


@pytest.mark.parametrize(
    ("headers", "per_minute", "seconds"),
    [
        (("500", "0", "1m0s"), 500, 60),
        (("500", "20", "57.6s"), 500, 57.6),
        # Per day: 14,400 is ten per minute.
        (("14400", "1440", "21h36m0s"), 10, 77_760),
        (("600", "0", "500ms"), 72_000, 0.5),
        (("600", "59", "54.1"), 600, 54.1),
    ],
)
def test_a_limit_that_is_nearly_used_up_gives_the_rate_at_which_it_fills_up(
    headers: tuple[str, str, str], per_minute: float, seconds: float
) -> None:
    (rate,) = openai(*headers)
    assert (rate.per_minute, rate.seconds) == pytest.approx((per_minute, seconds))


def test_a_limit_that_is_not_used_up_slows_nothing_down() -> None:
    assert openai("500", "51", "53.88s") == []


def test_anthropic_says_when_it_will_be_full() -> None:
    (rate,) = rates(
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_remaining="0",
        anthropic_ratelimit_requests_reset="2030-01-01T12:01:00Z",
    )
    assert rate == ProviderRate(50, 60)


def test_anthropic_counts_input_and_output_apart() -> None:
    found = rates(
        "tokens",
        anthropic_ratelimit_input_tokens_limit="40000",
        anthropic_ratelimit_input_tokens_remaining="1000",
        anthropic_ratelimit_input_tokens_reset="2030-01-01T12:00:30Z",
        anthropic_ratelimit_output_tokens_limit="8000",
        anthropic_ratelimit_output_tokens_remaining="8000",
        anthropic_ratelimit_output_tokens_reset="2030-01-01T12:00:00Z",
    )
    assert found == [ProviderRate(78_000, 30)]


@pytest.mark.parametrize(
    "headers",
    [
        ("0", "0", "60s"),
        ("-5", "0", "60s"),
        ("500", "-1", "60s"),
        ("500", "0", "0s"),
        ("500", "0", "-60s"),
        ("500", "0", ""),
        ("500", "0", "soon"),
        ("500", "0", "1000000h"),
        ("500", "0", "2020-01-01T00:00:00Z"),
        ("many", "none", "60s"),
        ("١٢", "0", "60s"),
        ("1e9", "0", "60s"),
    ],
)
def test_headers_that_make_no_sense_are_ignored(headers: tuple[str, str, str]) -> None:
    assert openai(*headers) == []


@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=24))
def test_no_header_is_an_error(limit: str, remaining: str, reset: str) -> None:
    for rate in openai(limit, remaining, reset):
        assert rate.per_minute > 0
        assert 0 < rate.seconds <= 86_400
