"""Run the verification steps of the documents behind Batchline: all of them, or those that are named.

    python -m examples.seeds [--short] [PART …]

Exit code 1: a check failed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import openai
import psycopg
from psycopg.conninfo import make_conninfo

from batchline.embedded import EmbeddedPostgres
from examples.seeds import adoption, duplicates, governed, idle, lazy, summaries
from examples.seeds.site import Site, StepFailed

PARTS: dict[str, tuple[str, Callable[[Site], None]]] = {
    "lazy": ("Lazy request creation: operations", lazy.verify),
    "adoption": ("Lazy request creation: migration and rollback", adoption.verify),
    "duplicates": ("Duplicate submissions", duplicates.verify),
    "governed": ("Governed operations", governed.verify),
    "idle": ("Idle load", idle.verify),
    "summaries": ("Summarization under concurrency", summaries.verify),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.seeds", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--short", action="store_true", help="fewer items and shorter times")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    began = time.monotonic()
    failures: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="batchline-seeds-") as folder,
        # Every statement is logged, for the part that counts them.
        EmbeddedPostgres.start(
            Path(folder, "server"), settings={"log_statement": "all", "log_line_prefix": "<%a %d> "}
        ) as server,
    ):
        for part in options.parts or PARTS:
            failures += run(part, server.url, Path(folder), options.short)
    print(f"\n{'FAILED: ' + '; '.join(failures) if failures else 'All checks passed.'}", end=" ")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if failures else 0


def run(part: str, server: str, folder: Path, short: bool) -> list[str]:
    """Run one part in its own database; return what failed."""
    title, verify = PARTS[part]
    print(f"\n{title}", flush=True)
    began = time.monotonic()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {part}".encode())
    location = folder / part
    location.mkdir()
    site = Site(make_conninfo(server, dbname=part), location, short)
    try:
        site.run("migrate", "up")
        verify(site)
    except (StepFailed, subprocess.TimeoutExpired, psycopg.Error, openai.OpenAIError, URLError) as error:
        site.check(f"{title} runs to its end", False, error)
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return site.failures


if __name__ == "__main__":
    sys.exit(main())
