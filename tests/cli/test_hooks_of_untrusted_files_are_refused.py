"""Whoever can write the settings file decides what hooks run, so it must not be writable by other users."""

import os
from pathlib import Path

import pytest

from batchline.cli.display.console import CommandError
from batchline.cli.server_settings import check_hook_file, read_settings
from tests.support.processes import batchline

HOOK = '[worker]\non_end_command = ["true"]\n'
FUNCTION = '[worker]\non_end = ["reports:send"]\n'
NO_HOOK = "[worker]\nconcurrency = 3\n"


def a_file(folder: Path, content: str, mode: int) -> Path:
    path = folder / "batchline.toml"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [HOOK, FUNCTION])
@pytest.mark.parametrize("mode", [0o646, 0o664])
def test_a_file_that_others_can_write_must_have_no_hooks(tmp_path: Path, content: str, mode: int) -> None:
    path = a_file(tmp_path, content, mode)
    with pytest.raises(CommandError, match="another user can write it"):
        check_hook_file(read_settings({"config": path}))


def test_a_file_of_another_user_must_have_no_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_file(tmp_path, HOOK, 0o644)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CommandError, match="another user can write it"):
        check_hook_file(read_settings({"config": path}))


def test_hooks_of_a_file_of_this_user_and_hooks_of_flags_are_accepted(tmp_path: Path) -> None:
    check_hook_file(read_settings({"config": a_file(tmp_path, HOOK, 0o644)}))
    anybodys = a_file(tmp_path, NO_HOOK, 0o666)
    check_hook_file(read_settings({"config": anybodys}))
    check_hook_file(read_settings({"config": anybodys, "on_end_command": ("true",)}))


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_the_commands_check_it_before_they_start(tmp_path: Path, command: str) -> None:
    path = a_file(tmp_path, HOOK, 0o666)
    done = batchline(command, "--config", str(path), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "another user can write it" in done.stderr
    assert not (tmp_path / "data").exists()
