"""Retention in tests has all the time that a slow machine takes."""

import pytest

from batchline.batches import retention


@pytest.fixture(autouse=True)
def _time_for_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a worker it ends after three seconds, done or not. Tests of that give it a time of their own."""
    for act in (retention.enforce, retention.drop_deleted_batches):
        monkeypatch.setattr(act, "__kwdefaults__", {"seconds": 600.0})
