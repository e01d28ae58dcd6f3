"""Text from upstreams and users reaches the terminal as it is: no markup, no emoji, no control characters."""

from datetime import UTC, datetime, timedelta

import pytest
from rich.table import Table

from batchline.cli.commands import attempts, why
from batchline.cli.display.console import CommandError, err, out, report
from batchline.model import Attempt, ItemHistory, phases

MESSAGES = (
    "unexpected [/INST] in the prompt",
    "1 validation error [type=missing, input_value={'a': 1}, input_type=dict]",
    "[red]wrong[/red] :key: and \\[/x]",
)


def an_item(message: str) -> ItemHistory:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return ItemHistory(
        custom_id="[/x]",
        line_no=1,
        model="m",
        state="failed",
        attempt=2,
        claimed_at=None,
        not_before=None,
        status_code=400,
        finished_at=now,
        attempts=(Attempt(1, "http_500", message, now, now),),
        started_at=now - timedelta(seconds=5),
        until=now,
        error_code="http_400",
        message=message,
    )


@pytest.mark.parametrize("message", MESSAGES)
def test_why_and_attempts_show_what_an_upstream_said(
    message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    item = an_item(message)
    why._tell(item, phases(item))
    text = capsys.readouterr().out
    assert text.startswith("[/x]  line 1")
    assert text.count(message) == 2
    attempts._tell(item)
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("message", MESSAGES)
def test_no_table_and_no_error_reads_markup(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", box=None)
    table.add_row(message)
    for console in (out(), err()):
        console.print(table)
        console.print(message)
    report(CommandError(f"{message}\x1b[2J", details=[message]), as_json=False)
    printed = capsys.readouterr()
    assert printed.out.count(message) == 2
    assert printed.err.count(message) == 4
    assert "\x1b" not in printed.err
