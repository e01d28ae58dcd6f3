"""Without the extra, OpenTelemetry is neither needed nor loaded, and settings that need it are refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import batchline, write_requests

# As if the extra were not installed. FastAPI needs OpenTelemetry's API, and the extra adds the rest.
_WITHOUT = (
    "import sys\nfor name in ('sdk', 'exporter'):\n    sys.modules[f'opentelemetry.{name}'] = None\n"
    "from batchline.cli.main import main\nmain()\n"
)
_LOADED = (
    "import sys\nfrom batchline.cli.main import main\n"
    "try:\n    main()\nfinally:\n"
    "    found = [name for name in sys.modules if 'opentelemetry' in name or name.endswith('.otlp')]\n"
    "    assert not found, found\n"
)


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BATCHLINE_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**kept, **environment},
    )


@pytest.mark.parametrize("command", ["worker", "serve", "run", "submit"])
def test_an_endpoint_without_the_extra_is_an_error_before_anything_starts(
    tmp_path: Path, command: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    given = (str(inputs), "--upstream", "http://127.0.0.1:9") if command in ("run", "submit") else ()
    done = python(
        _WITHOUT,
        *(command, *given, "--data-dir", str(tmp_path / "data")),
        BATCHLINE_TRACES_ENDPOINT="http://127.0.0.1:4318",
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: traces.endpoint is set, but OpenTelemetry is not installed")
    assert "pip install 'batchline[otel]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_without_an_endpoint_nothing_of_it_is_needed(database_url: str, tmp_path: Path) -> None:
    done = python(
        _WITHOUT, "worker", "--drain", "--database", database_url, "--data-dir", str(tmp_path / "data")
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_an_endpoint_nothing_of_it_is_loaded(database_url: str, tmp_path: Path) -> None:
    done = python(
        _LOADED, "worker", "--drain", "--database", database_url, "--data-dir", str(tmp_path / "data")
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('endpoint = "http://user:pass@h"', "give a key in OTEL_EXPORTER_OTLP_HEADERS"),
        ("sample = 2", "must be a number from 0 to 1"),
        ('headers_to = ["gateway"]', "must be a list of http:// or https:// URLs"),
        ("ratio = 1", "unknown key"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "run"])
def test_mistakes_in_the_settings_are_named(tmp_path: Path, content: str, message: str, command: str) -> None:
    path = tmp_path / "batchline.toml"
    path.write_text(f"[traces]\n{content}\n")
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    given = (str(inputs), "--upstream", "http://127.0.0.1:9") if command == "run" else ()
    done = batchline(command, *given, "--config", str(path), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "line 2" in done.stderr
    assert "pass" not in done.stderr.replace("password", "")


@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_file_that_others_can_write_must_name_no_endpoint(tmp_path: Path, command: str) -> None:
    path = tmp_path / "batchline.toml"
    path.write_text('[traces]\nendpoint = "http://127.0.0.1:4318"\n')
    path.chmod(0o666)
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    given = (str(inputs), "--upstream", "http://127.0.0.1:9") if command == "run" else ()
    done = batchline(command, *given, "--config", str(path), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "has an endpoint for traces, and another user can write it" in " ".join(done.stderr.split())
