"""Callbacks of an app: which functions can be one, for which operations, and what they get."""

from collections.abc import Callable
from typing import Any

import pytest

from batchline.operations.callbacks import CallbackCatalog, EndedBatch, make_callback
from batchline.operations.errors import InvalidApp
from batchline.operations.operation import make_operation


async def report(day: str) -> str:
    return day


async def scrape(url: str) -> None:
    return None


async def ended(batch: EndedBatch) -> None:
    return None


REPORT, SCRAPE = make_operation(report), make_operation(scrape)


def test_a_callback_is_a_hook_of_one_operation_or_of_each_operation_of_the_app() -> None:
    catalog = CallbackCatalog()
    catalog.add(make_callback(ended))
    catalog.add(make_callback(ended, SCRAPE, name="scraped"))
    assert [each.hook for each in catalog.of([REPORT, SCRAPE])] == [
        "python:report/ended",
        "python:scrape/ended",
        "python:scrape/scraped",
    ]


def blocking(batch: EndedBatch) -> None:
    return None


async def without_batch() -> None:
    return None


@pytest.mark.parametrize(
    ("function", "problem"), [(blocking, "async def"), (without_batch, "one parameter"), ("x", "no name")]
)
def test_a_function_that_cannot_be_a_callback_is_refused(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(InvalidApp, match=problem):
        make_callback(function)


def test_two_functions_cannot_have_one_name_and_one_may_be_defined_again() -> None:
    catalog = CallbackCatalog()
    catalog.add(make_callback(ended))
    catalog.add(make_callback(ended))
    with pytest.raises(InvalidApp, match="two callbacks 'ended'"):
        catalog.add(make_callback(scrape, name="ended"))
    assert [each.name for each in catalog] == ["ended"]
