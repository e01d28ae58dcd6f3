"""What a handler does, and the verdict that its item gets: in the event loop and in threads."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.executors.python.judge import Judge
from batchline.executors.python.outcome import AttemptFailed, Outcome
from batchline.executors.python.threads import HandlerThreads
from batchline.model import Completed, Deferred, Failed, Item, Ran, Retried, TaskParked
from batchline.operations.context import Context
from batchline.operations.operation import make_operation
from batchline.operations.outcomes import Fail, Parked, Retry
from tests.support.python_operations import (
    BATCH,
    an_item,
    emitted_by,
    error_of,
    executing,
    result_of,
    verdict_on,
)
from tests.support.waiting import eventually


class Odd(Exception):
    """An error of a handler."""


class NotFound(Fail):
    """A failure with a code of its own."""


class BareRetry(Retry):
    """A class of the user that does not call the one it extends."""

    def __init__(self) -> None: ...


class BareFail(Fail):
    def __init__(self) -> None: ...


class Unreadable(Fail):
    def __getattribute__(self, name: str) -> Any:
        if name == "code":
            raise Odd
        return super().__getattribute__(name)


class Mute(Exception):
    def __str__(self) -> str:
        raise Odd


def raising(error: BaseException) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """The same handler for both places."""

    async def in_loop(item: int) -> None:
        raise error

    def in_thread(item: int) -> None:
        raise error

    return in_loop, in_thread


def returning(value: Any) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    async def in_loop(item: int):  # type: ignore[no-untyped-def]
        return value

    def in_thread(item: int):  # type: ignore[no-untyped-def]
        return value

    return in_loop, in_thread


# --- Results -----------------------------------------------------------------------------------------------


async def test_a_value_completes_the_item_as_an_ordinary_output_line() -> None:
    for function in returning({"a": [1, None, "ü\0"]}):
        verdict = await verdict_on(function, key="the key")
        assert isinstance(verdict, Completed)
        assert verdict.output == (
            b'{"id":"batch_req_%(batch)b_1","custom_id":"the key","response":{"status_code":200,'
            b'"request_id":"batch_req_%(batch)b_1","body":{"a":[1,null,"\xc3\xbc\\u0000"]}},"error":null}'
            % {b"batch": BATCH.hex.encode()}
        )


async def test_a_result_that_does_not_match_fails_the_item_at_once() -> None:
    async def wrong(item: int) -> int:
        return "one"  # type: ignore[return-value]

    assert error_of(await verdict_on(wrong)) == (
        "invalid_result",
        "The result does not match: Expected `int`, got `str`",
    )
    for function in returning(object()):
        assert error_of(await verdict_on(function))[0] == "invalid_result"


async def test_a_result_of_16_mib_is_stored_and_a_larger_one_is_not() -> None:
    def of_size(size: int) -> str:
        return "x" * (size - 2)

    assert len(result_of(await verdict_on(of_size, 16 * 2**20))) == 16 * 2**20 - 2
    code, message = error_of(await verdict_on(of_size, 16 * 2**20 + 1))
    assert (code, message) == ("invalid_result", "The result exceeds 16777216 bytes.")


async def test_an_item_that_does_not_match_fails_alone() -> None:
    async def square(item: int) -> int:
        return item * item

    assert error_of(await verdict_on(square, "3")) == ("invalid_item", "Expected `int`, got `str`")


# --- Failed attempts ---------------------------------------------------------------------------------------


async def test_an_exception_is_a_failed_attempt_with_its_class_as_the_code() -> None:
    for function in raising(Odd("what was odd")):
        verdict = await verdict_on(function)
        assert isinstance(verdict, Retried)
        assert (verdict.error_code, verdict.message) == ("Odd", "what was odd")
        assert 0 < verdict.delay <= 0.5


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), BaseException("x"), TimeoutError()],
)
async def test_nothing_that_a_handler_raises_ends_the_worker(error: BaseException) -> None:
    for function in raising(error):
        verdict = await verdict_on(function)
        assert isinstance(verdict, Retried)
        assert verdict.error_code == type(error).__name__


async def test_after_the_last_attempt_of_the_operation_the_item_has_failed() -> None:
    for function in raising(Odd("what was odd")):
        assert isinstance(await verdict_on(function, attempt=2, max_attempts=3), Retried)
        assert error_of(await verdict_on(function, attempt=3, max_attempts=3)) == ("Odd", "what was odd")
        again = await verdict_on(function, attempt=4, attempts_before=3, max_attempts=3)
        assert isinstance(again, Retried)


async def test_retry_decides_the_delay() -> None:
    for function in raising(Retry("busy", after=30)):
        verdict = await verdict_on(function)
        assert isinstance(verdict, Retried)
        assert (verdict.error_code, verdict.message, verdict.delay) == ("Retry", "busy", 30.0)
        assert error_of(await verdict_on(function, max_attempts=1)) == ("Retry", "busy")
    for function in raising(Retry(after=0)):
        verdict = await verdict_on(function)
        assert isinstance(verdict, Retried)
        assert verdict.delay == 0.0


async def test_fail_ends_the_item_with_its_code() -> None:
    for function in raising(Fail("no such page", code="not_found")):
        assert error_of(await verdict_on(function)) == ("not_found", "no such page")
    for function in raising(NotFound("gone")):
        assert error_of(await verdict_on(function)) == ("NotFound", "gone")


async def test_subclasses_of_retry_and_fail_need_not_call_their_init() -> None:
    for function in raising(BareRetry()):
        verdict = await verdict_on(function)
        assert isinstance(verdict, Retried)
        assert (verdict.error_code, verdict.message) == ("BareRetry", "")
    for function in raising(BareFail()):
        assert error_of(await verdict_on(function)) == ("BareFail", "")


async def test_an_error_whose_code_cannot_be_read_is_a_failed_attempt() -> None:
    for function in raising(Unreadable("gone")):
        verdict = await verdict_on(function)
        assert isinstance(verdict, Retried)
        assert (verdict.error_code, verdict.message) == ("Unreadable", "gone")


async def test_a_thread_in_which_something_is_raised_ends_the_call_and_serves_the_next() -> None:
    ended: list[int] = []
    threads = HandlerThreads("report", lambda: ended.append(1))

    def leave() -> list[Outcome]:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="outcome of a handler could not be read"):
        await threads.start(leave)
    assert await threads.start(list) == []
    assert ended == [1, 1]
    threads.close()


async def test_a_thread_that_cannot_be_started_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(item: int) -> int:
        return item

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    operation = make_operation(handler, concurrency=1)
    async with executing(operation) as executor:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await executor.run(an_item(operation, 1))
        assert result_of(await executor.run(an_item(operation, 2))) == 2


async def test_parked_is_no_attempt_and_brings_the_task_back() -> None:
    async def handler(item: int, ctx: Context) -> str | Parked:
        return Parked("task-7", after=45) if ctx.task_id is None else f"result of {ctx.task_id}"

    verdict = await verdict_on(handler, attempt=5)
    assert isinstance(verdict, TaskParked)
    assert (verdict.task_id, verdict.delay) == ("task-7", 45.0)
    assert result_of(await verdict_on(handler, task_id="task-7")) == "result of task-7"


async def test_a_message_is_cut_and_can_be_stored_whatever_it_is() -> None:
    for error, message in [
        (Odd("x" * 10_000), "x" * 4096),
        (Odd("a\0b\ud800"), "a�b?"),
        (Mute(), ""),
    ]:
        for function in raising(error):
            assert error_of(await verdict_on(function, max_attempts=1))[1] == message


@given(st.integers(1, 90), st.floats(0, 1, exclude_max=True))
def test_delays_grow_to_a_maximum_with_full_jitter(attempt: int, random: float) -> None:
    operation = make_operation(raising(Odd())[0], max_attempts=100, backoff=(2, 50))
    judge = Judge(operation, random=lambda: random)
    verdict = judge.verdict(an_item(operation, attempt=attempt), AttemptFailed("Odd", ""))
    assert isinstance(verdict, Retried)
    ceiling = min(50, 2 * 2.0 ** (attempt - 1))
    assert (
        random * ceiling <= verdict.delay <= max(random * ceiling * 1.13, 0.0626, random * ceiling + 0.0626)
    )


async def test_an_error_is_logged_once_in_a_while_without_its_message(log: StringIO) -> None:
    def secretive(item: int) -> None:
        raise Odd("my secret")

    now = 0.0
    operation = make_operation(secretive)
    judge = Judge(operation, clock=lambda: now)
    for later in (0.0, 1.0, 2.0, 11.0):
        now = later
        judge.verdict(an_item(operation), AttemptFailed("Odd", "my secret", trace="where it was raised"))
    assert log.getvalue().count("handler raised") == 2
    assert "same_before=2" in log.getvalue()
    await verdict_on(secretive)
    assert "in secretive" in log.getvalue()
    assert "my secret" not in log.getvalue().replace('raise Odd("my secret")', "")


# --- Time limits and cancellation --------------------------------------------------------------------------


async def test_a_time_limit_cancels_an_async_handler() -> None:
    ended: list[bool] = []

    async def endless(item: int, ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(ctx.cancelled.is_set())

    verdict = await verdict_on(endless, timeout=0.01)
    assert isinstance(verdict, Retried)
    assert (verdict.error_code, verdict.message) == ("timeout", "The function did not end within 0.01 s.")
    assert len(ended) == 1


async def test_a_time_limit_holds_if_the_handler_makes_another_error_of_it() -> None:
    async def stubborn(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Odd from None

    verdict = await verdict_on(stubborn, timeout=0.01, max_attempts=1)
    assert error_of(verdict)[0] == "timeout"


async def test_a_time_limit_fails_the_attempt_of_a_thread_and_frees_its_slot_when_it_returns() -> None:
    release, entered, seen = threading.Event(), threading.Semaphore(0), list[bool]()

    def slow(item: int, ctx: Context) -> int:
        if item == 1:
            entered.release()
            ctx.cancelled.wait()
            release.wait()
            seen.append(ctx.cancelled.is_set())
        return item

    operation = make_operation(slow, timeout=0.01, concurrency=1, max_attempts=1)
    async with executing(operation) as executor:
        assert error_of(await executor.run(an_item(operation, 1)))[0] == "timeout"
        assert seen == []
        waiting = asyncio.create_task(_ran(executor.run(an_item(operation, 2))))
        release.set()
        assert result_of(await waiting) == 2
        assert seen == [True]


async def test_an_item_that_finds_no_thread_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def stuck(item: int) -> None:
        release.wait()

    operation = make_operation(stuck, timeout=0.01, concurrency=1)
    async with executing(operation) as executor:
        assert isinstance(await executor.run(an_item(operation)), Retried)
        item = an_item(operation)
        assert await executor.run(item) == Deferred(item, 1.0)
        waiting = asyncio.create_task(_ran(executor.run(item)))
        await asyncio.sleep(0)
        executor.wind_down()
        assert await waiting == Deferred(item, 1.0)
        release.set()


async def test_an_item_is_not_run_if_the_lease_was_lost_while_it_waited() -> None:
    release, ran, fence = threading.Event(), list[int](), ["before"]

    def slow(item: int) -> int:
        ran.append(item)
        release.wait()
        return item

    operation = make_operation(slow, timeout=0.01, concurrency=1)
    async with executing(operation) as executor:
        executor.fenced_by(lambda: fence[0])
        assert isinstance(await executor.run(an_item(operation, 1)), Retried)
        waiting = asyncio.create_task(_ran(executor.run(an_item(operation, 2))))
        await asyncio.sleep(0)
        fence[0] = "after"
        release.set()
        assert isinstance(await waiting, Deferred)
        assert ran == [1]


async def test_the_cancellation_of_a_worker_reaches_its_handlers() -> None:
    for_threads, started, cancelled = threading.Event(), list[int](), list[bool]()

    async def in_loop(item: int, ctx: Context) -> None:
        started.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    def in_thread(item: int, ctx: Context) -> None:
        started.append(item)
        cancelled.append(ctx.cancelled.wait(60))
        for_threads.set()

    first, second = make_operation(in_loop), make_operation(in_thread)
    async with executing(first, second) as executor:
        tasks = [asyncio.create_task(_ran(executor.run(an_item(operation)))) for operation in (first, second)]
        await eventually("both handlers run", lambda: len(started) == 2)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        await asyncio.to_thread(for_threads.wait)
        assert cancelled == [True, True]


async def test_close_does_not_wait_for_a_thread_that_is_stuck() -> None:
    release = threading.Event()

    def stuck(item: int) -> None:
        release.wait()

    started = time.monotonic()
    assert isinstance(await verdict_on(stuck, timeout=0.01), Retried)
    assert time.monotonic() - started < 30
    release.set()


async def test_threads_run_side_by_side_and_are_used_again() -> None:
    meeting, used = threading.Barrier(3), set[int]()

    def meet(item: int) -> int:
        used.add(threading.get_ident())
        meeting.wait(60)
        return item

    operation = make_operation(meet, concurrency=3)
    async with executing(operation) as executor:
        for _ in range(3):
            verdicts = await asyncio.gather(*(executor.run(an_item(operation, n)) for n in range(3)))
            assert [result_of(verdict) for verdict in verdicts] == [0, 1, 2]
    assert len(used) == 3


async def test_handlers_that_never_wait_leave_time_for_the_rest_of_the_event_loop() -> None:
    async def busy(item: int) -> int:
        return item

    operation = make_operation(busy)
    items, done, passes = iter([an_item(operation)] * 20_000), list[int](), list[int]()

    async def runner() -> None:
        for item in items:
            await executor.run(item)
            done.append(1)

    async def watch() -> None:
        while len(done) < 20_000:
            passes.append(len(done))
            await asyncio.sleep(0)

    async with executing(operation) as executor:
        await asyncio.gather(watch(), *(runner() for _ in range(100)))
    # All of them take 100 ms or more, and a pass 5 ms.
    assert len(passes) > 5


# --- Stages ------------------------------------------------------------------------------------------------


async def test_what_a_completed_attempt_emits_is_in_its_verdict_in_order() -> None:
    async def parse(page: str) -> int:
        return 1

    async def in_loop(item: int, ctx: Context) -> None:
        for n in range(item):
            await ctx.emit("parse", f"page {n}", key=f"{n}")

    def in_thread(item: int, ctx: Context) -> None:
        for n in range(item):
            ctx.emit("parse", f"page {n}", key=f"{n}")

    for function in (in_loop, in_thread):
        parsing, fetching = make_operation(parse), make_operation(function, emits=["parse"])
        async with executing(parsing, fetching) as executor:
            verdict = await executor.run(an_item(fetching, 3))
        assert emitted_by(verdict) == [("parse", f"{n}", f"page {n}") for n in range(3)]


async def test_an_attempt_that_fails_emits_nothing() -> None:
    async def parse(page: str) -> int:
        return 1

    async def emits_and_raises(item: int, ctx: Context) -> None:
        await ctx.emit("parse", "page")
        raise Odd

    async def emits_wrong(item: int, ctx: Context) -> None:
        await ctx.emit("parse", 3)

    async def emits_unlisted(item: int, ctx: Context) -> None:
        await ctx.emit("store", 3)

    for function, code in (
        (emits_and_raises, "Odd"),
        (emits_wrong, "InvalidItem"),
        (emits_unlisted, "InvalidApp"),
    ):
        operation = make_operation(function, emits=["parse"])
        async with executing(make_operation(parse), operation) as executor:
            verdict = await executor.run(an_item(operation))
        assert isinstance(verdict, Retried)
        assert verdict.error_code == code


async def test_more_than_64_mib_cannot_be_emitted() -> None:
    def parse(page: str) -> None: ...

    def floods(item: int, ctx: Context) -> None:
        for _ in range(5):
            ctx.emit("parse", "x" * 15 * 2**20)

    operation = make_operation(floods, emits=["parse"])
    async with executing(make_operation(parse), operation) as executor:
        verdict = await executor.run(an_item(operation))
    assert error_of(verdict) == ("invalid_result", "The emitted items exceed 67108864 bytes.")


# --- Other items, and items that kill workers --------------------------------------------------------------


class Elsewhere:
    """Another executor, which notes what it is asked."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    async def run(self, item: Item) -> Ran:
        self.noted.append(item)
        return Deferred(item)

    def fenced_by(self, fence: Any) -> None:
        self.noted.append("fenced")

    def wind_down(self) -> None:
        self.noted.append("wound down")

    async def close(self) -> None:
        self.noted.append("closed")


async def test_items_that_are_not_of_python_go_to_the_other_executor() -> None:
    other, item = Elsewhere(), an_item("/v1/chat/completions")
    async with executing(otherwise=other) as executor:
        executor.fenced_by(lambda: "name")
        await executor.run(item)
        executor.wind_down()
    assert other.noted == ["fenced", item, "wound down", "closed"]


async def test_an_item_that_this_worker_cannot_run_goes_back_with_one_warning(log: StringIO) -> None:
    unknown, foreign = an_item("python:unknown"), an_item("/v1/chat/completions")
    other = Elsewhere()
    async with executing(otherwise=other) as executor:
        assert await executor.run(unknown) == Deferred(unknown, 30.0)
        assert await executor.run(unknown) == Deferred(unknown, 30.0)
    assert log.getvalue().count("no such operation") == 1
    async with executing() as executor:
        assert await executor.run(foreign) == Deferred(foreign, 30.0)


async def test_an_item_that_three_workers_died_with_has_failed() -> None:
    calls = list[int]()

    async def deadly(item: int) -> None:
        calls.append(item)

    verdict = await verdict_on(deadly, losses=3)
    assert error_of(verdict) == ("worker_died", "3 workers died while they held this item.")
    assert calls == []


async def test_items_that_two_workers_died_with_run_one_at_a_time() -> None:
    go, entered = asyncio.Event(), list[int]()

    async def suspect(item: int) -> int:
        entered.append(item)
        await go.wait()
        return item

    operation = make_operation(suspect)
    async with executing(operation) as executor:
        first = asyncio.create_task(_ran(executor.run(an_item(operation, 1, losses=2))))
        await eventually("the first runs", lambda: entered)
        second = asyncio.create_task(_ran(executor.run(an_item(operation, 2, losses=2))))
        ordinary = asyncio.create_task(_ran(executor.run(an_item(operation, 3, losses=1))))
        await eventually("one that is not suspect runs beside it", lambda: entered == [1, 3])
        go.set()
        assert [result_of(await each) for each in (first, second, ordinary)] == [1, 2, 3]


async def test_of_many_items_that_two_workers_died_with_some_wait_and_the_others_come_back() -> None:
    go = asyncio.Event()

    async def suspect(item: int) -> int:
        await go.wait()
        return item

    operation = make_operation(suspect)
    async with executing(operation) as executor:
        items = [an_item(operation, number, losses=2) for number in range(20)]
        running = [asyncio.create_task(_ran(executor.run(item))) for item in items]
        done, waiting = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        assert [await each for each in done] == [Deferred(each.result().item, 0.05) for each in done]
        assert len(waiting) == 17
        go.set()
        assert sorted([result_of(await each) for each in waiting]) == list(range(17))


@pytest.mark.parametrize("why", ["the worker stops", "its lease is lost"])
async def test_an_item_that_waits_for_its_turn_is_given_back_if(why: str) -> None:
    go, name = asyncio.Event(), ["first"]

    async def suspect(item: int) -> int:
        await go.wait()
        return item

    operation = make_operation(suspect)
    async with executing(operation) as executor:
        executor.fenced_by(lambda: name[0])
        running = [
            asyncio.create_task(_ran(executor.run(an_item(operation, number, losses=2))))
            for number in range(2)
        ]
        await asyncio.sleep(0)
        if why == "the worker stops":
            executor.wind_down()
        else:
            name[0] = "second"
        go.set()
        first, second = [await each for each in running]
        assert result_of(first) == 0
        assert isinstance(second, Deferred)


async def test_an_operation_that_is_defined_again_replaces_the_first_one() -> None:
    def version(number: int) -> Callable[[int], Any]:
        def versioned(item: int) -> int:
            return number

        return versioned

    operation = make_operation(version(1))
    async with executing(operation) as executor:
        assert result_of(await executor.run(an_item(operation))) == 1
        executor._catalog.add(make_operation(version(2)))
        assert result_of(await executor.run(an_item(operation))) == 2


async def test_a_handler_with_a_context_by_keyword_gets_it() -> None:
    async def by_keyword(item: int, *, ctx: Context) -> str:
        return f"{ctx.operation} {item}"

    assert result_of(await verdict_on(by_keyword, 7)) == "by_keyword 7"


async def test_a_failed_verdict_has_no_status() -> None:
    verdict = await verdict_on(raising(Fail("no"))[0])
    assert isinstance(verdict, Failed)
    assert verdict.status_code is None
    assert sys.exc_info() == (None, None, None)


async def _ran(running: Any) -> Ran:
    ran: Ran = await running
    return ran
