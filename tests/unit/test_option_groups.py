"""Groups of options: what typer sees, and what the command gets."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from batchline.cli.log_options import add_log_options
from batchline.cli.option_groups import given_options, grouped


@dataclass(frozen=True, slots=True)
class Colours:
    front: Annotated[str | None, typer.Option("--front")] = None
    back: Annotated[str | None, typer.Option("--back")] = None


@dataclass(frozen=True, slots=True)
class Sizes:
    wide: Annotated[int, typer.Option("--wide")] = 7


def paint(
    name: Annotated[str, typer.Argument()], *, colours: Colours, loud: bool = False, sizes: Sizes
) -> None:
    """Paint it."""
    print(name, given_options(colours), loud, sizes.wide)


@pytest.mark.parametrize("with_log_options", [False, True])
def test_a_command_gets_its_groups_filled_and_typer_sees_their_fields(with_log_options: bool) -> None:
    app = typer.Typer()
    app.command()(grouped(paint))
    if with_log_options:
        add_log_options(app)
    done = CliRunner().invoke(app, ["door", "--back", "red", "--loud", "--wide", "9"])
    assert done.output == "door {'back': 'red'} True 9\n"
    assert CliRunner().invoke(app, ["door"]).output == "door {} False 7\n"
    text = CliRunner().invoke(app, ["--help"]).output
    assert [each for each in ("Paint it.", "--front", "--back", "--loud", "--wide") if each not in text] == []
    assert "colours" not in text
