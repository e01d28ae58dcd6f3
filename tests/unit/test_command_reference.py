"""The command reference has every command and option as the program has them."""

from batchline.cli.main import MODULES
from tools.command_reference import PAGE, rendered


def test_the_page_is_up_to_date() -> None:
    assert rendered() == PAGE.read_text(), "run python -m tools.command_reference"


def test_the_page_has_every_command() -> None:
    page = PAGE.read_text()
    for command in (each for commands in MODULES.values() for each in commands):
        assert f"\n## `batchline {command}`\n" in page
