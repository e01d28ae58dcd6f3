"""The rate of a producer: items per second over the last few seconds."""

from batchline.worker.rate import Rate


class Now:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_it_is_zero_before_time_has_passed() -> None:
    rate = Rate(Now())
    rate.count = 7
    assert rate.per_second == 0.0


def test_it_counts_the_items_of_the_time_since_the_start() -> None:
    now = Now()
    rate = Rate(now)
    rate.count, now.seconds = 30, 102.0
    assert rate.per_second == 15.0


def test_it_forgets_what_is_older_than_its_window() -> None:
    now = Now()
    rate = Rate(now)
    for _ in range(50):
        now.seconds += 0.1
        rate.count += 100
        fast = rate.per_second
    assert abs(fast - 1000.0) < 1.0
    for _ in range(50):
        now.seconds += 0.1
        slow = rate.per_second
    assert slow == 0.0
