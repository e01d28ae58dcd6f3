"""Errors of commands: each becomes one message and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from batchline.cli.display.console import CommandError, report
from batchline.cli.options import Exit
from batchline.host.disk import full_message, is_full
from batchline.store.batches import FileNotFound
from batchline.store.errors import (
    StorageQuotaExceeded,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
    TenantClosed,
)
from batchline.store.migrate import NotRolling, TablesInUse, UnknownRevision
from batchline.store.schema import DatabaseUnreachable
from batchline.worker.supervisor import ServiceFailed

READ_ONLY = (
    "the database is read-only: {}; if it is a standby, give the primary's address with --database,"
    " otherwise try again when it accepts writes"
)


@contextmanager
def reported_errors(as_json: bool) -> Iterator[None]:
    """Turn expected errors into a message and an exit code."""
    try:
        yield
    except CommandError as error:
        raise report(error, as_json) from error
    except ServiceFailed as error:
        raise report(CommandError(str(error), Exit.SOME_FAILED), as_json) from error
    except StoreReadOnly as error:
        raise report(CommandError(READ_ONLY.format(error)), as_json) from error
    except StoreUnavailable as error:
        raise report(
            CommandError(f"the database does not answer: {error}; try again later"), as_json
        ) from error
    except StorageQuotaExceeded as error:
        message = f"{error}; delete batches with `batchline delete`, or see `batchline tenants quota --help`"
        raise report(CommandError(message), as_json) from error
    except TenantClosed as error:
        raise report(CommandError(f"{error}; see `batchline tenants list`"), as_json) from error
    except (
        FileNotFound,
        UnknownRevision,
        NotRolling,
        TablesInUse,
        DatabaseUnreachable,
        StoreUnusable,
    ) as error:
        raise report(CommandError(str(error)), as_json) from error
    except BrokenPipeError as error:
        # The reader of our output has left, as `head` does.
        raise typer.Exit(Exit.SOME_FAILED) from error
    except OSError as error:
        if is_full(error):
            raise report(
                CommandError(full_message(error.filename or "the output's disk")), as_json
            ) from error
        name = "" if error.filename is None else f"{error.filename}: "
        raise report(CommandError(f"{name}{error.strerror or error}"), as_json) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(Exit.INTERRUPTED) from error
