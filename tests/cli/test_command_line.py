"""Each command is known by name before its module is loaded, and loads no more than it needs."""

import subprocess
import sys

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from batchline.cli.main import MODULES, command_line

COMMANDS = [command for commands in MODULES.values() for command in commands]


def commands_of(*arguments: str) -> list[str]:
    group = get_command(command_line(arguments))
    assert isinstance(group, TyperGroup)
    return list(group.commands)


@pytest.mark.parametrize("module", MODULES)
def test_a_command_that_is_named_is_there_with_those_of_its_module(module: str) -> None:
    for command in MODULES[module]:
        assert sorted(commands_of(command)) == sorted(MODULES[module])


def test_options_before_the_command_do_not_hide_it() -> None:
    assert commands_of("-v", "run", "serve") == ["run"]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-v",), ("rnu", "x.jsonl")])
def test_without_a_command_that_there_is_all_of_them_are_offered(arguments: tuple[str, ...]) -> None:
    assert sorted(commands_of(*arguments)) == sorted(COMMANDS)


def test_a_mistyped_command_is_refused_with_the_one_that_was_meant() -> None:
    done = CliRunner().invoke(command_line(["simulat"]), ["simulat"])
    assert done.exit_code == 2
    assert "simulate" in done.stderr


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"serve", "ui"}))
def test_only_servers_load_what_a_server_needs(command: str) -> None:
    code = f"""
import sys
from batchline.cli.main import command_line
command_line([{command!r}])
print(sorted({{"fastapi", "uvicorn", "alembic"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
