"""The bulk import loses and doubles nothing while two of its workers are killed."""

import json
import subprocess
from collections import Counter
from pathlib import Path

from examples.bulk_import.__main__ import WORKERS
from examples.bulk_import.entities import COMPOSERS, resolved, spellings
from examples.bulk_import.tasks import IN_FLIGHT_PER_HOST, scrape
from tests.support.processes import PYTHON
from tests.support.repository import ROOT

PAGES, KILLED = 300, 2


def test_pages_are_imported_once_through_two_killed_workers(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(PYTHON, "-m", "examples.bulk_import", "--pages", str(PAGES), "--kill", str(KILLED)),
            # Slow enough that the workers die while requests are in flight.
            *("--latency", "0.3", "--output", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed worker") == KILLED
    lines = [json.loads(line) for line in (tmp_path / "compositions.jsonl").read_text().splitlines()]
    pages = Counter(int(line["page"].rpartition("/")[2]) for line in lines)
    assert pages == Counter(range(PAGES))
    composers = Counter(line["value"]["composer"] for line in lines)
    assert set(composers) == set(COMPOSERS)

    site = json.loads((tmp_path / "site.json").read_text())
    assert set(site["answered"]) == {str(number) for number in range(PAGES)}
    # Only what was in flight when a worker died is requested again.
    again = sum(site["answered"].values()) - PAGES
    assert again <= KILLED * scrape.options.concurrency
    # The site may still answer requests of those that died.
    assert max(site["peak"]) <= IN_FLIGHT_PER_HOST * (WORKERS + KILLED)


def test_every_spelling_of_a_composer_is_resolved() -> None:
    found = {(composer, resolved(name)) for composer in COMPOSERS for name in spellings(composer)}
    assert found == {(composer, composer) for composer in COMPOSERS}


def test_an_unknown_name_is_not_resolved() -> None:
    assert resolved("Johann Sebastian Bach") is None
