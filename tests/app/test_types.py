"""The types that a user's type checker sees."""

import subprocess
import sys
from pathlib import Path

_TYPED = """
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

from batchline import Batchline, BatchProgress, Context, ItemFailed, Parked, SubmittedBatch

app = Batchline()


@dataclass
class Photo:
    path: str


@dataclass
class Thumb:
    size: int


@app.operation(max_attempts=5, timeout=30)
async def thumbnail(photo: Photo) -> Thumb:
    return Thumb(1)


@app.operation
def square(number: int) -> int:
    return number * number


@app.operation
async def known(number: int, ctx: Context) -> str:
    return ctx.key


@app.operation(name="parked")
async def parking(number: int, ctx: Context) -> str | Parked:
    return Parked("task-7")


@app.operation(chunk=100, emits=[known])
async def chunked(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


@app.operation(chunk=100)
def blocking_chunk(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


async def main() -> None:
    batch = await app.submit(thumbnail, [Photo("a")], key=lambda photo: photo.path, priority=3)
    assert_type(batch, SubmittedBatch[Photo, Thumb])
    assert_type(await batch.wait(progress=True), BatchProgress)
    async for result in batch.results():
        assert_type(result.value, Thumb)
        assert_type(result.get(), Thumb)
    assert_type(await app.call(thumbnail, Photo("")), Thumb)
    assert_type(await app.amap(square, range(5)), list[int])
    assert_type(await app.amap(square, [1], return_exceptions=True), list[int | ItemFailed])
    assert_type(await app.amap(known, [1]), list[str])
    assert_type(await app.amap(parking, [1]), list[str])
    assert_type(await app.amap(chunked, [1]), list[str])
    assert_type(await app.amap(blocking_chunk, [1]), list[str])
    assert_type(await thumbnail(Photo("")), Thumb)
    assert_type(square(3), int)
    assert_type(await chunked([1]), list[str])
    async with app.worker(operations=[square, "known"]):
        pass


def blocking() -> None:
    batch = app.sync.submit(square, range(5))
    for result in batch.results():
        assert_type(result.value, int)
    assert_type(app.map(square, range(5)), list[int])
    assert_type(app.sync.call(square, 5), int)
"""

_WRONG = """
from batchline import Batchline

app = Batchline()


@app.operation
def square(number: int) -> int:
    return number * number


app.map(square, ["a"])
app.map(square, [1], priority="high")
app.sync.call(square, "a")
square("a")
"""


def _checked(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "typed.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "typed.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_results_have_the_types_of_the_functions(tmp_path: Path) -> None:
    done = _checked(tmp_path, _TYPED)
    assert done.returncode == 0, done.stdout


def test_wrong_items_and_keywords_are_found(tmp_path: Path) -> None:
    done = _checked(tmp_path, _WRONG)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if "error:" in line]
    assert found == ["12", "13", "14", "15"], done.stdout
