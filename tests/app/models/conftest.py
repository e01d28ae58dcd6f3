"""A simulated upstream, and clients of it on a fresh database."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchline import AsyncOpenAI
from tests.support.processes import Upstream, simulated

MakeClient = Callable[..., AsyncOpenAI]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with simulated() as upstream:
        yield upstream


@pytest.fixture
def new_client(database_url: str, tmp_path: Path) -> MakeClient:
    def make(url: str, name: str = "calls", **keywords: Any) -> AsyncOpenAI:
        return AsyncOpenAI(
            upstream=url, batch=name, database=database_url, data_dir=tmp_path / "data", **keywords
        )

    return make
