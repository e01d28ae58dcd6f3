"""The display's numbers and lines, without a terminal."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from batchline.cli.display.chunks import room_lines
from batchline.cli.display.frame import Frame, plain_lines
from batchline.cli.display.money import money
from batchline.cli.display.progress import DisplayedProgress
from batchline.cli.display.slowness import slowness
from batchline.cli.display.tables import print_table
from batchline.cli.display.units import about, age, count, counted, duration, latency, percent, rate, size
from batchline.model import BatchStatus, CauseCount, ItemCounts
from batchline.store.provider_chunks import FullProvider
from batchline.upstreams.view import Latencies, LimitingBudget, UpstreamView

CALM = UpstreamView("http://a", 3, 64, 64, full=False, p50=0.2, p95=0.5, oldest=1.0)
COUNTS = ItemCounts(1000, 900, 12, 80, 5, 3, 0, 0)
RUNNING = DisplayedProgress(BatchStatus.IN_PROGRESS, COUNTS, 123_456, 20.0, upstream=CALM)


def cause(message: str) -> CauseCount:
    return CauseCount(message, "http_404", message, 12, 0, None)


def drawn(progress: DisplayedProgress, columns: int, title: str = "prompts.jsonl") -> list[str]:
    console = Console(width=columns, file=io.StringIO(), color_system=None, force_terminal=True)
    with console.capture() as captured:
        console.print(Frame(title, progress))
    return captured.get().rstrip("\n").split("\n")


@pytest.mark.parametrize(
    ("done", "displayed"),
    [(0, "0.0 %"), (1, "0.0 %"), (999_999, "99.9 %"), (999_500, "99.9 %"), (1_000_000, "100 %")],
)
def test_only_all_lines_are_100_percent(done: int, displayed: str) -> None:
    assert percent(done, 1_000_000) == displayed


def test_lines_in_provider_batches_are_displayed() -> None:
    relayed = replace(RUNNING, relayed=True, counts=replace(COUNTS, pending=0, in_progress=85))
    assert "3 in flight  82 in provider batches" in plain_lines("prompts.jsonl", relayed)
    assert "in provider batches" not in plain_lines("prompts.jsonl", RUNNING)


def test_a_provider_without_room_is_named_with_its_limits() -> None:
    assert room_lines([FullProvider("gpt", 4, 4, 1_500, None), FullProvider("o", 1, 9, 1_500, 2_000)]) == [
        "lines wait for room at the provider of gpt: it has 4 of 4 chunks, of all batches",
        "lines wait for room at the provider of o: it has 1 of 9 chunks, about 1,500 of 2,000 tokens, of all"
        " batches",
    ]


def test_numbers_are_short() -> None:
    assert [duration(each) for each in (3, 75, 3700, 90_000)] == [
        "3 s",
        "1 min 15 s",
        "1 h 01 min",
        "1 d 1 h",
    ]
    assert [latency(each) for each in (0.012, 0.9999, 1.23, 9.99, 20, 125)] == [
        *("12 ms", "1.0 s", "1.2 s", "10 s", "20 s", "2 min 05 s"),
    ]
    assert [age(each) for each in (-1, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
    assert [count(each) for each in (99_999, 100_000, 1_230_000)] == ["99,999", "100 k", "1.23 M"]
    assert [size(each) for each in (999, 1_200, 999_900, 35_000_000_000)] == [
        "999 B",
        "1.2 kB",
        "1.0 MB",
        "35 GB",
    ]
    assert [rate(each) for each in (0, 0.05, 4.21, 628.4)] == ["0/s", "0.05/s", "4.2/s", "628/s"]
    assert [about(each) for each in (0, 0.52, 1.74, 19.6, 154, 1543)] == [
        "0",
        "0.52",
        "1.7",
        "20",
        "150",
        "1,500",
    ]


def test_quantiles_are_of_the_last_answers() -> None:
    latencies = Latencies()
    assert latencies.quantiles(0.5, 0.95) == [None, None]
    for each in range(10_000):
        latencies.add(float(each))
    p50, p95 = latencies.quantiles(0.5, 0.95)
    assert (p50, p95) == (9744.0, 9974.0)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (CALM, None),
        (replace(CALM, rate_limit=19.8), "upstream limits to 20/s"),
        (
            replace(CALM, budget=LimitingBudget(1200, None, 9, 0.3)),
            "at the budget of 1,200 requests per minute",
        ),
        (
            replace(CALM, budget=LimitingBudget(6, 5000, 9, 8.1)),
            "at the budget of 6 requests and 5,000 tokens per minute, next request in 8 s",
        ),
        (replace(CALM, rate_limit=0.5, paused_for=16.8), "upstream asks to wait, next request in 17 s"),
        (replace(CALM, full=True, p50=20.0), "64 of 64 in flight, p50 20 s"),
        (replace(CALM, full=True, p50=None), "64 of 64 in flight"),
        (
            replace(CALM, full=True, limit=8),
            "8 of 8 in flight (lowered from 64 after time-outs), p50 200 ms",
        ),
        (
            replace(
                CALM,
                unavailable_for=12.3,
                next_try=4.1,
                reason="Connection refused",
                connects=False,
                rate_limit=5.0,
            ),
            "upstream unreachable for 12 s, next try in 4 s: Connection refused",
        ),
        (
            replace(CALM, unavailable_for=12.3, next_try=0.0, reason="it answers 502"),
            "upstream unavailable for 12 s, trying again now: it answers 502",
        ),
    ],
)
def test_the_strongest_limit_is_named(view: UpstreamView, text: str | None) -> None:
    found = slowness(view)
    assert (None if found is None else found.text) == text


def test_trouble_comes_before_the_upstream_and_retries_after_it() -> None:
    full = replace(RUNNING, upstream=replace(CALM, full=True))
    troubled = replace(full, trouble="disk full").slowness
    assert troubled is not None
    assert (troubled.text, troubled.trouble) == ("disk full", True)
    waiting = replace(
        RUNNING, upstream=replace(CALM, in_flight=0), counts=ItemCounts(20, 10, 0, 0, 0, 10, 0, 0)
    ).slowness
    assert waiting is not None
    assert waiting.text == "10 wait for their next attempt"
    ended = replace(full, status=BatchStatus.COMPLETED)
    assert ended.slowness is None


def test_what_other_parts_know_is_displayed_if_it_is_there() -> None:
    more = replace(RUNNING, reused=40, cost="$1.23", causes=(cause("model not found"),))
    lines = drawn(more, 80)
    assert lines[1:] == [
        "20/s  4 s left  3 in flight  3 retrying  12 failed  40 reused",
        "p50 200 ms  p95 500 ms  oldest 1.0 s  123 k tokens  $1.23",
        "12 × 404 model not found",
    ]
    assert "reused" not in "\n".join(drawn(RUNNING, 80))
    ended = drawn(replace(more, status=BatchStatus.COMPLETED), 80)
    assert "404" not in "\n".join(ended), "the command says it at the end"


@pytest.mark.parametrize("columns", [20, 40, 80, 129, 130, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    view = replace(CALM, unavailable_for=12.0, reason="x" * 300)
    causes = (cause("cause " * 60), cause("a\nb\x1b[2J"))
    busy = replace(RUNNING, upstream=view, reused=40, cost="$1.23", causes=causes)
    lines = drawn(busy, columns, title="長い名前" * 30)
    assert all(Console(width=400).measure(line).maximum <= columns for line in lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("columns", [20, 80, 130])
def test_the_last_line_leaves_room_for_the_echo_of_ctrl_c(columns: int) -> None:
    lines = drawn(replace(RUNNING, causes=(cause("cause " * 60),)), columns)
    assert Console(width=400).measure(lines[-1]).maximum <= columns - len("^C")


def test_without_its_upstream_a_batch_has_no_time_left() -> None:
    assert RUNNING.seconds_left is not None
    assert replace(RUNNING, upstream=replace(CALM, unavailable_for=3.0)).seconds_left is None


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
def test_a_narrow_table_leaves_out_columns_and_cuts_no_numbers(columns: int) -> None:
    console = Console(width=columns, file=io.StringIO(), color_system=None)
    names, row = (
        ("id", "file", "upstream", "done"),
        ("01a1e816", "questions.jsonl", "127.0.0.1:8000", "100.0 %"),
    )
    with console.capture() as captured:
        print_table(console, names, [row], cut=("file", "upstream"), right=("done",))
    header, line = captured.get().splitlines()
    assert len(line) <= columns
    assert line.startswith("01a1e816")
    assert line.rstrip().endswith("100.0 %")
    assert ("upstream" in header) == (columns >= 40)


def test_lines_of_a_log_have_no_control_characters() -> None:
    troubled = replace(RUNNING, trouble="no\nroom", causes=(cause("model\nnot found"),))
    assert plain_lines("a\x1bb.jsonl", troubled) == (
        "a\\u001bb.jsonl: 912 of 1,000 done (91.2 %)  20/s  4 s left  3 in flight  3 retrying  12 failed"
        "  p50 200 ms  p95 500 ms  oldest 1.0 s  123 k tokens  no room\n  12 × 404 model not found"
    )


def test_one_of_a_kind_is_not_plural() -> None:
    assert [counted(number, "line") for number in (0, 1, 2_000)] == ["0 lines", "1 line", "2,000 lines"]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (3_000_000, "$0.003"),
        (50_000_000, "$0.05"),
        (12_500_000, "$0.0125"),
        (246_700_000, "$0.2467"),
        (500_000_000, "$0.50"),
        (12_340_000_000, "$12.34"),
    ],
)
def test_money_has_cents_and_no_zeros_after_them(nano: int, text: str) -> None:
    assert money(nano) == text
