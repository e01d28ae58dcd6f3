"""Errors of the database as errors of the library."""

from collections.abc import Iterator
from contextlib import contextmanager

from batchline.app.runtime import RuntimeUnavailable
from batchline.operations.errors import BatchlineError, DatabaseUnavailable
from batchline.store.errors import (
    StatementRefused,
    StorageQuotaExceeded,
    StoreUnavailable,
    StoreUnusable,
    TenantClosed,
)


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, StoreUnusable, RuntimeUnavailable) as error:
        raise DatabaseUnavailable(str(error)) from error
    except (StorageQuotaExceeded, TenantClosed, StatementRefused) as error:
        raise BatchlineError(str(error)) from error
