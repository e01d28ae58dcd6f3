"""`batchline settings`: each value, where it comes from, and no secrets."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batchline.cli.main import command_line

SECRET = "kept-to-itself"
TEXT = f"""
[server]
max_lines = 7

[[upstreams]]
name = "gpu"
base_url = "http://h/v1"

[[operations]]
name = "restart"
upstream = "gpu"
path = "/restart"
headers = {{ Authorization = "Bearer {SECRET}" }}

[[budgets]]
upstream = "gpu"
requests_per_minute = 60
"""


def settings(config: Path, *more: str) -> Result:
    arguments = ["settings", "--config", str(config), *more]
    return CliRunner().invoke(command_line(arguments), arguments)


def test_each_setting_is_printed_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "batchline.toml"
    config.write_text(TEXT)
    monkeypatch.setenv("BATCHLINE_WORKER_LEASE", "30")
    monkeypatch.setenv("BATCHLINE_LISTEN_URL", f"postgresql://u:{SECRET}@h/a")
    done = settings(config, "--database", f"postgresql://u:{SECRET}@h/b")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert f"server.max_lines = 7  # {config}, line 3" in lines
    assert 'worker.lease = "30s"  # BATCHLINE_WORKER_LEASE' in lines
    assert "limits.user_pending_parents = 3  # default" in lines
    assert 'database = "postgresql://***REDACTED***@h/b"  # --database' in lines
    assert 'listen = "postgresql://***REDACTED***@h/a"  # BATCHLINE_LISTEN_URL' in lines
    assert f'upstreams[0].base_url = "http://h/v1"  # {config}, line 7' in lines
    assert f"budgets[0].requests_per_minute = 60  # {config}, line 17" in lines
    assert SECRET not in done.stdout


def test_a_mistake_in_the_file_ends_the_command(tmp_path: Path) -> None:
    config = tmp_path / "batchline.toml"
    config.write_text("[worker]\nleas = 3\n")
    done = settings(config, "--json")
    assert done.exit_code == 2
    assert "line 2: worker.leas: unknown key; did you mean lease?" in done.stderr
