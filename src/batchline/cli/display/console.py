"""Output for people and programs: text on the terminal, or one JSON document on stdout."""

import errno
import re
import sys
from datetime import datetime
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from batchline.batches.batch_object import steps_object
from batchline.cli.options import Exit
from batchline.model import Batch, ids
from batchline.secrets.addresses import public_url
from batchline.store.hooks import HookDelivery


class CommandError(Exception):
    """Ends a command with a message for a person and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.BAD_INPUT, details: list[str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details or []


# Characters that move a terminal's cursor, change its colours, or reverse the text after them. Errors contain
# text from upstreams, and reasons contain text from users.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class SafeConsole(Console):
    """Writes control characters as escapes such as \\u001b, so that text cannot control the terminal. It
    reads no markup and no names of emoji, in tables neither: `[/INST]` in an upstream's answer is text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Rich would end the program without a word."""
        raise BrokenPipeError(errno.EPIPE, "the reader has left")

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """Text for a terminal, escaped as in JSON. Tabs and line feeds stay."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_TIMES = (
    *("created_at", "in_progress_at", "expires_at", "paused_at", "cancelling_at", "finalizing_at"),
    *("completed_at", "failed_at", "expired_at", "cancelled_at"),
)


def out() -> Console:
    # In a pipe, lines are not cut to 80 columns.
    width = None if sys.stdout.isatty() else 10_000
    return SafeConsole(file=sys.stdout, highlight=False, soft_wrap=True, width=width)


def err() -> Console:
    return SafeConsole(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    # Outside of strings, JSON has no control characters except line feeds, so escapes change nothing.
    sys.stdout.write(printable(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()) + "\n")
    sys.stdout.flush()


def report(error: CommandError, as_json: bool) -> typer.Exit:
    """Print the error, on stderr and as JSON if requested. Returns the exit to raise."""
    if as_json:
        print_json({"error": {"message": str(error), "details": error.details}})
    err().print(Text.assemble(("error:", "red"), f" {printable(str(error))}"))
    for detail in error.details:
        err().print(f"  {detail}")
    return typer.Exit(error.code)


def show_batch(batch: Batch) -> dict[str, Any]:
    """A batch as all commands print it."""
    upstream = batch.settings.upstream
    return {
        "id": ids.show(ids.BATCH, batch.id),
        "status": batch.status.value,
        "input_file_id": ids.show(ids.FILE, batch.file_id),
        "output_file_id": _file(batch.output_file_id),
        "error_file_id": _file(batch.error_file_id),
        "upstream": None if upstream is None else public_url(upstream),
        "completion_window": batch.completion_window,
        "priority": batch.priority,
        "concurrency": batch.concurrency,
        "metadata": batch.metadata,
        "reused": batch.reused,
        "duplicates": batch.duplicates,
        "order": batch.settings.order,
        "request_counts": msgspec.to_builtins(batch.counts),
        "usage": {
            "input_tokens": batch.input_tokens,
            "output_tokens": batch.output_tokens,
            "total_tokens": batch.input_tokens + batch.output_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
        },
        **{name: _time(getattr(batch, name)) for name in _TIMES},
        "steps": steps_object(batch.settings.steps, batch.step, batch.step_total, batch.next_step_at),
        "finalize_failures": batch.finalize_failures,
        "finalize_error": batch.finalize_error,
        "summary": batch.summary,
    }


def show_hook_delivery(delivery: HookDelivery) -> dict[str, Any]:
    """A delivery to a hook as all commands print it."""
    return {
        "hook": delivery.hook,
        "event_id": ids.show(ids.EVENT, delivery.event_id),
        "type": delivery.type,
        "batch_id": ids.show(ids.BATCH, delivery.batch_id),
        "state": delivery.state,
        "attempts": delivery.attempts,
        "occurred_at": _time(delivery.occurred_at),
        "next_attempt_at": _time(delivery.available_at) if delivery.state == "waiting" else None,
        "delivered_at": _time(delivery.delivered_at),
        "abandoned_at": _time(delivery.failed_at),
        "error": delivery.last_error,
        "output": delivery.last_output,
    }


def finalize_trouble(batch: Batch) -> str | None:
    """Why a batch whose lines are all done has not ended: the last error of finalizing."""
    if not batch.finalize_failures or batch.ended_at is not None:
        return None
    times = "once" if batch.finalize_failures == 1 else f"{batch.finalize_failures} times"
    again = f"; next try at {batch.finalize_after:%H:%M:%S}" if batch.finalize_after else ""
    return f"finalizing has failed {times}: {batch.finalize_error}{again}"


def _file(value: Any) -> str | None:
    return None if value is None else ids.show(ids.FILE, value)


def _time(value: datetime | None) -> int | None:
    return None if value is None else int(value.timestamp())
