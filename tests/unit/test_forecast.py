"""Forecasts: their ranges contain the truth, and say on what they stand."""

import random

import pytest

from batchline.batches.forecast import forecast_object, rough_forecast, sample_forecast
from batchline.model import ModelPrice, Spending
from batchline.model.spending import largest_usage
from batchline.store.forecasts import LearnedUsage, ProfileLine, SampledLine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SPENDING = Spending({"m": ModelPrice(input=1.0, output=2.0)}, bytes_per_token=4.0, output_tokens=1000)


def test_a_sample_forecasts_within_its_range_nearly_always() -> None:
    rng, hits = random.Random(1), 0
    for _ in range(200):
        lines = [SampledLine("m", rng.randint(50, 150), rng.randint(0, 400), 1.0) for _ in range(2000)]
        forecast = sample_forecast(lines[:50], 1950, SPENDING, 64)
        assert forecast is not None
        assert forecast.cost is not None
        truth = sum(1000 * line.input_tokens + 2000 * line.output_tokens for line in lines[50:])
        hits += forecast.cost.low <= truth <= forecast.cost.high
    assert hits >= 180


def test_without_a_finished_line_there_is_no_forecast() -> None:
    assert sample_forecast([], 10, SPENDING, 64) is None


def test_the_time_lies_between_all_slots_used_and_as_fast_as_the_sample() -> None:
    # 20 lines at once took two seconds; 64 slots would run 640 lines in ten rounds.
    forecast = sample_forecast([SampledLine("m", 1, 1, 2.0)] * 20, 640, None, 64)
    assert forecast is not None
    assert forecast.seconds is not None
    assert (forecast.seconds.low, forecast.seconds.high) == (20.0, 64.0)
    assert forecast.cost is None


def test_a_rough_forecast_assumes_bytes_per_token_and_the_output_limit() -> None:
    line = ProfileLine("m", CHAT, 10.0, b'{"max_tokens": 100}'.ljust(400))
    forecast = rough_forecast([line], {}, SPENDING)
    assert (forecast.lines, forecast.learned_from, forecast.rough) == (10, 0, True)
    assert (forecast.input_tokens.low, forecast.input_tokens.likely) == (500.0, 1000.0)
    assert (forecast.output_tokens.low, forecast.output_tokens.high) == (0.0, 1000.0)
    assert forecast.cost is not None
    assert forecast.cost.high == 10 * (1000 * 150 + 2000 * 100)


def test_a_rough_forecast_learns_from_earlier_requests() -> None:
    learned = {"m": LearnedUsage("m", requests=4, bytes=800, input_tokens=100, output_tokens=200)}
    line = ProfileLine("m", CHAT, 1.0, b"{}".ljust(800))
    forecast = rough_forecast([line], learned, SPENDING)
    assert (forecast.input_tokens.likely, forecast.output_tokens.likely) == (100.0, 50.0)
    assert forecast.learned_from == 4
    assert forecast_object(forecast)["cost"]["likely"] == pytest.approx(0.0002)


@pytest.mark.parametrize(
    ("url", "body", "output"),
    [
        (CHAT, b'{"max_tokens": 7}', 7),
        (CHAT, b'{"max_completion_tokens": 8, "max_tokens": 7}', 8),
        ("/v1/responses", b'{"max_output_tokens": 9}', 9),
        (CHAT, b'{"max_tokens": 7, "n": 3}', 21),
        (CHAT, b'{"max_tokens": "many", "n": 0}', 1000),
        (CHAT, b"{}", 1000),
        (COMPLETIONS, b'{"prompt": "a", "max_tokens": 7, "n": 2, "best_of": 5}', 35),
        (COMPLETIONS, b'{"prompt": ["a", "b", "c"], "max_tokens": 7}', 21),
        (COMPLETIONS, b'{"prompt": [[1, 2], [3]], "max_tokens": 7, "best_of": 2}', 28),
        (COMPLETIONS, b'{"prompt": [1, 2, 3], "max_tokens": 7}', 7),
        (COMPLETIONS, b'{"prompt": [], "max_tokens": 7, "best_of": "x"}', 7),
        (COMPLETIONS, b'{"prompt": [1, , 2], "max_tokens": 7}', 1000),
        (CHAT, b'{"prompt": ["a", "b"], "max_tokens": 7}', 7),
        (CHAT, b"not JSON", 1000),
        ("/v1/embeddings", b"{}", 0),
    ],
)
def test_the_output_limit_of_a_request(url: str, body: bytes, output: int) -> None:
    assert largest_usage(SPENDING, url, body).output_tokens == output
