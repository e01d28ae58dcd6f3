"""The layers: a module imports only what stands below it, and only the store speaks SQL."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

LINT = Path(sys.executable).with_name("lint-imports")


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    command = [str(LINT), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


def test_every_layer_imports_only_what_stands_below_it() -> None:
    done = lint(ROOT / "src")
    assert done.returncode == 0, done.stdout
    assert "8 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("model/batch.py", "import batchline.store.batches", "A package imports only what stands below it"),
        (
            "batches/creation.py",
            "import batchline.worker.worker",
            "A package imports only what stands below it",
        ),
        (
            "store/batches.py",
            "import batchline.batches.creation",
            "A package imports only what stands below it",
        ),
        ("worker/worker.py", "import psycopg", "Only the store speaks SQL"),
        ("simulate/server.py", "import batchline.embedded", "stand alone"),
        ("embedded/cluster.py", "import batchline.config.settings", "imports only host"),
        ("simulate/server.py", "import batchline.host.disk", "imports only host"),
        ("api/app.py", "import batchline.embedded", "Only cli and app import the embedded server"),
        ("worker/worker.py", "import batchline.simulate", "Only cli and app import the embedded server"),
        (
            "api/app.py",
            "import batchline.files.inputs.urls",
            "Only cli opens inputs by name, which may be URLs",
        ),
        ("traces/lines.py", "import opentelemetry.trace", "Only traces.otlp imports OpenTelemetry"),
        ("api/admin/rate_limits.py", "import batchline.store.audit", "Only governance writes audit records"),
        ("cli/commands/limits.py", "import batchline.store.audit", "Only governance writes audit records"),
    ],
)
def test_an_import_against_the_order_is_found(module: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src" / "batchline" / module
    path.write_text(path.read_text() + f"\n{line}\n")
    done = lint(tmp_path / "src")
    assert done.returncode != 0
    broken = [row for row in done.stdout.splitlines() if "BROKEN" in row]
    assert any(contract in row for row in broken), done.stdout
