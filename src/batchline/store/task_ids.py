"""Ids of tasks as they are stored.

A provider's id is stored as it is: it names one task, and a second item with it is an error. A handler of a
Python operation may return the same id for several items, so its id is stored with the batch and the ordinal.
"""

from uuid import UUID

from batchline.model import Item
from batchline.model.emission import PYTHON


def stored(item: Item, task_id: str) -> str:
    claim = item.claim
    return f"{_prefix(claim.batch_id)}{item.ordinal}:{task_id}" if claim.url.startswith(PYTHON) else task_id


def returned(batch_id: UUID, task_id: str | None) -> str | None:
    """The id that the provider or the handler returned."""
    prefix = _prefix(batch_id)
    if task_id is None or not task_id.startswith(prefix):
        return task_id
    return task_id[len(prefix) :].partition(":")[2]


def _prefix(batch_id: UUID) -> str:
    return f"{PYTHON}{batch_id}:"
