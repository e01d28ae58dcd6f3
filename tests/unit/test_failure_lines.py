"""Why items failed, in words, and the options that limit failures."""

import pytest

from batchline.cli.display.console import CommandError
from batchline.cli.display.failures import failure_lines
from batchline.cli.failure_limits import PAUSE_ALIKE, with_failure_limits
from batchline.model import CauseCount, RunSettings


def test_a_cause_is_one_line_with_its_count_and_an_example() -> None:
    causes = [
        CauseCount("a", "http_404", 'model not found: "gpt-5-mini"', 1412, 0, "q-34"),
        CauseCount("b", "http_503", "overloaded", 3, 57, "q-8"),
        CauseCount("c", "timeout", "no complete answer in time", 0, 2, None),
        CauseCount("other", "", "other causes", 9, 0, None),
    ]
    assert failure_lines(causes) == [
        '1,412 × 404 model not found: "gpt-5-mini", e.g. q-34',
        "3 × 503 overloaded, e.g. q-8 (57 retrying)",
        "2 retrying: timeout no complete answer in time",
        "9 × other causes",
    ]


def test_the_least_frequent_causes_share_a_line() -> None:
    causes = [CauseCount(str(n), "http_400", f"bad {n}", 10 - n, 1, None) for n in range(8)]
    assert failure_lines(causes, 2)[2:] == ["39 × 6 more causes; --json lists them"]
    assert failure_lines(causes[:3], 2)[2:] == ["9 × 1 more cause; --json lists them"]
    assert failure_lines([]) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, RunSettings(pause_alike=PAUSE_ALIKE)),
        ("none", RunSettings()),
        ("0", RunSettings(max_failed=0)),
        ("250", RunSettings(max_failed=250)),
        ("5%", RunSettings(max_failed_percent=5.0)),
        ("0.5 %", RunSettings(max_failed_percent=0.5)),
    ],
)
def test_a_limit_of_failures_replaces_the_default(given: str | None, expected: RunSettings) -> None:
    assert with_failure_limits(RunSettings(), given) == expected


@pytest.mark.parametrize("given", ["", "-1", "5 lines", "101%", "1e3", "%", "9999999999", "٣"])
def test_a_limit_that_means_nothing_is_refused(given: str) -> None:
    with pytest.raises(CommandError, match="--max-failed"):
        with_failure_limits(RunSettings(), given)
