"""Errors of the database as errors of the library."""

import re
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

_OPTION = re.compile(r"^--database(?=:| is)|( with the same)? ?--database")
_ARGUMENT = 'Batchline("postgresql://…")'


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, StoreUnusable, RuntimeUnavailable) as error:
        raise DatabaseUnavailable(_for_programs(str(error))) from error
    except (StorageQuotaExceeded, TenantClosed, StatementRefused) as error:
        raise BatchlineError(str(error)) from error


def _for_programs(message: str) -> str:
    """The advice of a command, for a program: it has no option for the database."""
    return _OPTION.sub(_argument, message)


def _argument(option: "re.Match[str]") -> str:
    if option.start() == 0:
        return f"the URL in {_ARGUMENT}"
    # Then the option is that of `batchline migrate`.
    return " with --database and the URL of the app" if option[1] else f" {_ARGUMENT}"
