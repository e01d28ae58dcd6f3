"""The next version of Batchline, for tests of upgrades: a copy of the package with one more migration."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchline.store import schema
from tests.support.processes import PYTHON, kill
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT

NEXT = f"{int(schema.HEAD) + 1:04}"

# A column of the hottest tables, which every statement of a running worker reads, and a table.
_MIGRATION = """
from alembic import op

revision = "{next}"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade():
    op.execute("ALTER TABLE batches ADD COLUMN colour text NOT NULL DEFAULT 'none'")
    op.execute("ALTER TABLE spans ADD COLUMN colour text")
    op.execute("ALTER TABLE results ADD COLUMN colour text")
    op.execute("CREATE TABLE colours (name text PRIMARY KEY)")
    {more}


def downgrade():
    op.execute("DROP TABLE colours")
    for table in ("batches", "spans", "results"):
        op.execute(f"ALTER TABLE {{table}} DROP COLUMN colour")
"""
_INCOMPATIBLE = """op.execute("UPDATE schema_compatibility SET compatible_from = '{next}'")"""


@dataclass(frozen=True, slots=True)
class NextVersion:
    folder: Path

    @classmethod
    def make(cls, folder: Path, *, compatible: bool = True) -> "NextVersion":
        package = folder / "batchline"
        shutil.copytree(ROOT / "src" / "batchline", package, ignore=shutil.ignore_patterns("__pycache__"))
        more = "" if compatible else _INCOMPATIBLE.format(next=NEXT)
        migration = _MIGRATION.format(next=NEXT, head=schema.HEAD, more=more)
        (package / f"store/migrations/versions/{NEXT}_next.py").write_text(migration)
        versions = package / "store/schema.py"
        text = versions.read_text()
        for name in ("HEAD", "OLDEST_USABLE"):
            old = f'\n{name} = "{schema.HEAD}"'
            assert old in text
            text = text.replace(old, f'\n{name} = "{NEXT}"')
        versions.write_text(text)
        return cls(folder)

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PYTHON, "-m", "batchline", *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=os.environ | self.environment(),
        )

    @contextmanager
    def working(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [PYTHON, "-m", "batchline", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.environment(),
        )
        try:
            yield process
        finally:
            kill(process)
