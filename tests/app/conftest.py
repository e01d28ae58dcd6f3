"""An app on a fresh database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batchline import Batchline


@pytest.fixture
async def app(database_url: str, tmp_path: Path) -> AsyncIterator[Batchline]:
    async with Batchline(database_url, data_dir=tmp_path / "data") as app:
        yield app
