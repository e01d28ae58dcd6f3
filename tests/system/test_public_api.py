"""What `import batchline` offers, and what it costs."""

import subprocess
import sys

import pytest

import batchline
from batchline import Executor, Item, TaskParked, Verdict
from tests.support.http_executor import an_item


@pytest.mark.parametrize("name", batchline.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(batchline, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        batchline.nothing_like_it  # noqa: B018


def test_importing_batchline_imports_nothing_else_of_it() -> None:
    script = "import sys, batchline; print([name for name in sys.modules if name.startswith('batchline.')])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_an_executor_needs_only_run() -> None:
    class Parking(Executor):
        async def run(self, item: Item) -> Verdict:
            return TaskParked(item, "task-1")

    executor = Parking()
    executor.fenced_by(lambda: "worker")
    executor.wind_down()
    coroutine = executor.run(item := an_item(None))
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    assert stopped.value.value == TaskParked(item, "task-1")
