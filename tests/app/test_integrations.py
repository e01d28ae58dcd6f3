"""The examples of integrations, on a real database: FastAPI, Django, SQLAlchemy, psycopg, a notebook."""

import ast
import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyreqwest.client import SyncClientBuilder

from tests.support.processes import PYTHON
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT

PROGRAMS = ROOT / "examples" / "python"


def environment(database_url: str, folder: Path) -> dict[str, str]:
    return {**os.environ, "BATCHLINE_DATABASE_URL": database_url, "BATCHLINE_DATA_DIR": str(folder)}


def count(database_url: str, table: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize(
    ("program", "table"),
    [("shop.py", "orders"), ("orm_shop.py", "orm_orders"), ("django_shop.py", "shop_order")],
)
def test_an_order_and_its_batch_exist_both_or_neither(
    program: str, table: str, database_url: str, tmp_path: Path
) -> None:
    if program == "django_shop.py":
        pytest.importorskip("django")
    done = subprocess.run(
        [PYTHON, "-W", "error", str(PROGRAMS / program)],
        env=environment(database_url, tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout == "['mail to bob@example.com']\n", done.stderr
    assert (count(database_url, table), count(database_url, "batchline.batches")) == (1, 1)


@contextmanager
def serving(database_url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The service and its address."""
    process = subprocess.Popen(
        [PYTHON, "-m", "uvicorn", "service:api", "--port", "0"],
        cwd=PROGRAMS,
        env=environment(database_url, folder),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        while process.poll() is None and "running on" not in said:
            said = process.stderr.readline()
        address = re.search(r"http://\S+", said)
        assert address is not None, said
        yield process, address[0]
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def test_a_service_runs_batches_and_stops_cleanly(database_url: str, tmp_path: Path) -> None:
    with (
        serving(database_url, tmp_path) as (process, address),
        SyncClientBuilder().error_for_status(True).build() as client,
    ):
        answer = client.post(f"{address}/batches").body_json(["hello", "world"]).build().send().json()
        batch = f"{address}/batches/{answer['id']}"
        assert client.get(f"{batch}/results").build().send().json() == ["HELLO", "WORLD"]
        assert client.get(batch).build().send().json()["total"] == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        # uvicorn raises the signal again after its shutdown.
        assert process.returncode in (0, -signal.SIGTERM)
    assert count(database_url, "batchline.spans") == 0


async def test_the_cells_of_a_notebook_run_on_its_event_loop(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHLINE_DATABASE_URL", database_url)
    monkeypatch.setenv("BATCHLINE_DATA_DIR", str(tmp_path))
    names: dict[str, Any] = {"__name__": "notebook"}
    displayed = [await run_cell(cell, names) for cell in notebook_cells()]
    assert displayed[1] == [3, 5, 6]
    assert displayed[2].completed == 300
    assert displayed[3] == [("0", 3), ("1", 5), ("2", 6)]


def notebook_cells() -> list[str]:
    notebook = json.loads((PROGRAMS / "lengths.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"]]


async def run_cell(source: str, names: dict[str, Any]) -> Any:
    """As IPython does it: the value of the last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    await _run(compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if not isinstance(last, ast.Expr):
        return None
    expression = ast.Expression(last.value)
    return await _run(compile(expression, "<cell>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)


async def _run(code: Any, names: dict[str, Any]) -> Any:
    value = eval(code, names)
    await asyncio.sleep(0)
    return await value if inspect.iscoroutine(value) else value
