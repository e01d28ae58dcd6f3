"""However many secrets an item has, hiding them keeps neither a worker nor the API from anything else."""

import asyncio
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.executors.operation import OperationExecutor
from batchline.governance.operations import Operation
from batchline.model import Completed, Ran
from batchline.secrets.masking import (
    MASK,
    MAX_SECRET_BYTES,
    MAX_SECRETS,
    SecretFinder,
    TooManySecrets,
    masked_text,
    secrets_of,
    without,
)
from tests.support.event_loops import slowest_callback
from tests.support.http_executor import line_of
from tests.support.many_secrets import LABELS, VM_CREATE, machine, plain_labels, secret_labels
from tests.support.operation_executor import an_order, running, said
from tests.support.scripted_upstream import upstream_that

# --- The pass ----------------------------------------------------------------------------------------------


def seconds_for(count: int) -> float:
    secrets, answer = secret_labels(count).values(), plain_labels(count)
    began = time.thread_time()
    hidden = without(answer, list(secrets))
    spent = time.thread_time() - began
    assert set(hidden.values()) == {MASK}
    return spent


def test_twice_the_secrets_take_about_twice_the_time() -> None:
    # The best of all tries so far: a busy machine makes any one of them slow.
    few = many = math.inf
    for _ in range(10):
        few, many = min(few, seconds_for(5_000)), min(many, seconds_for(40_000))
        if many < 3 * 8 * few:
            return
    raise AssertionError(f"{few:.3f} s for 5,000 and {many:.3f} s for 40,000")


@given(
    st.lists(st.text('ab\\"/é', min_size=1, max_size=6), min_size=1, max_size=8),
    st.text('ab\\"/é%', max_size=60),
)
def test_no_secret_is_left_whole_and_nothing_else_is_hidden(secrets: list[str], text: str) -> None:
    hidden = SecretFinder(secrets).hide_text(text)
    kept = hidden.split(MASK)
    for secret in secrets:
        assert not any(secret in piece for piece in kept)
    assert MASK not in hidden or any(form in text for form in SecretFinder(secrets)._forms)
    assert all(piece in text for piece in kept)


def test_secrets_that_overlap_are_hidden_together() -> None:
    assert without("x abcdef y", ["abcd", "cdef"]) == f"x {MASK} y"
    assert without("x abcd y", ["abcd", "bc"]) == f"x {MASK} y"


@pytest.mark.parametrize(
    "text",
    [
        "password=a " * 20_000,
        "a://b:" * 40_000,
        ";password=" * 20_000,
        "a://" + "@" * 200_000,
        "passw" * 40_000,
        "-----BEGIN PRIVATE KEY-----" * 8_000,
        "pwd='" * 40_000,
    ],
    ids=lambda text: text[:20],
)
def test_adversarial_text_takes_linear_time(text: str) -> None:
    def seconds(piece: str) -> float:
        began = time.thread_time()
        masked_text(piece)
        return time.thread_time() - began

    part = whole = math.inf
    for _ in range(10):
        part, whole = min(part, seconds(text[: len(text) // 8])), min(whole, seconds(text))
        if whole < 3 * 8 * part + 0.01:
            return
    raise AssertionError(f"{part:.4f} s for an eighth, {whole:.4f} s for all")


# --- The caps ----------------------------------------------------------------------------------------------


def test_the_number_and_the_size_of_secrets_have_limits() -> None:
    assert len(secrets_of(secret_labels(MAX_SECRETS))) == MAX_SECRETS
    with pytest.raises(TooManySecrets, match="more than 1,000 fields"):
        secrets_of(secret_labels(MAX_SECRETS + 1))
    assert secrets_of({"password": "x" * MAX_SECRET_BYTES})
    with pytest.raises(TooManySecrets, match="bytes in fields with secret names; at most 32,768"):
        secrets_of({"password": "x" * (MAX_SECRET_BYTES + 1)})


# --- The event loops ---------------------------------------------------------------------------------------


def verdict_on(item: dict[str, Any], answer: Any) -> Ran:
    """Of a worker's executor, whose loop must not be kept."""
    order, answering = an_order(item, name="vm_create"), said(201, answer)

    async def run() -> Ran:
        async with upstream_that(answering) as upstream:

            async def test(executor: OperationExecutor) -> Ran:
                return await executor.run(order)

            verdict: Ran = await running(upstream, test, VM_CREATE)
            return verdict

    # Around the whole loop: a callback is timed when it ends. The best of ten: a busy machine makes any of
    # them slow, and the first client of a process reads the certificates of the machine.
    for _ in range(10):
        with slowest_callback() as slowest:
            verdict = asyncio.run(run())
        if slowest.is_quick:
            break
    slowest.check()
    return verdict


def test_a_worker_stays_quick_with_as_many_secrets_as_are_allowed() -> None:
    item = machine(**secret_labels(MAX_SECRETS), **plain_labels(LABELS))
    verdict = verdict_on(item, {"metadata": {"labels": item["labels"]}, "message": "value7 is taken"})
    assert isinstance(verdict, Completed)
    body = line_of(verdict)["response"]["body"]
    assert body["message"] == f"{MASK} is taken"
    assert body["metadata"]["labels"]["label7"] == MASK, "value7 is a secret, wherever it stands"
    assert body["metadata"]["labels"][f"label{LABELS - 1}"].startswith(MASK), "it begins with value1999"


def test_a_worker_stays_quick_with_an_item_from_before_there_was_a_limit() -> None:
    item = machine(**secret_labels(LABELS))
    verdict = verdict_on(item, {"metadata": {"labels": item["labels"]}})
    assert isinstance(verdict, Completed)
    body = line_of(verdict)["response"]["body"]
    assert body == f"{MASK}: the item has more than 1,000 fields with secret names, so it cannot be shown"


def test_an_operation_may_be_anything_with_secrets() -> None:
    """The cap is of the item, whatever its operation calls secret."""
    operation = Operation("any", request=None, executor="none", redact=("pin",))
    with pytest.raises(TooManySecrets):
        secrets_of({"pin": ["0000"] * (MAX_SECRETS + 1)}, operation.redact)
