"""The example for governed operations runs unchanged: its settings, its items and its walk."""

import re
import subprocess
from pathlib import Path

from batchline.config import load
from batchline.governance import keys, packs
from batchline.model import DEFAULT_TENANT, Role
from batchline.store.session import Session
from tests.support.builders import on
from tests.support.processes import simulated_cluster, start
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT

EXAMPLE = ROOT / "examples" / "operations"
PAGE = ROOT / "docs" / "how-to" / "governed-operations.md"


def test_the_walk_goes_from_submission_to_approval(database_url: str, tmp_path: Path) -> None:
    async def made(session: Session) -> list[str]:
        people = (("ann", Role.USER), ("bob", Role.APPROVER))
        return [(await keys.create(session, name, DEFAULT_TENANT, role))[1] for name, role in people]

    user, approver = on(database_url, made)
    with simulated_cluster() as cluster:
        process = start(
            *("serve", "--port", "0", "--config", str(EXAMPLE / "batchline.toml")),
            *("--database", database_url, "--data-dir", str(tmp_path)),
            BATCHLINE_UPSTREAM_CLUSTER_BASE_URL=cluster.url,
        )
        assert process.stdout is not None
        try:
            said = ""
            while process.poll() is None and "listening" not in said:
                said += process.stdout.readline()
            url = re.search(r"listening on (\S+)/v1", said)
            assert url is not None, said
            environment = {"BATCHLINE_URL": url[1], "USER_KEY": user, "APPROVER_KEY": approver}
            walked = subprocess.run(
                ["sh", str(EXAMPLE / "walk.sh")],
                capture_output=True,
                text=True,
                timeout=LIMIT,
                env={**environment, "PATH": "/usr/local/bin:/usr/bin:/bin"},
                check=False,
            )
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT)
        assert walked.returncode == 0, walked.stdout + walked.stderr
        first, last = walked.stdout.splitlines()
        assert first.endswith(": PENDING_APPROVAL")
        assert last == "ended: COMPLETED"
        assert cluster.stats()["objects"]["virtualmachines"] == 3


def test_the_page_shows_the_settings_of_the_example() -> None:
    """Word for word, but for comments and what the page leaves to the defaults."""
    text = PAGE.read_text()
    (displayed,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    path = EXAMPLE / "batchline.toml"
    written = [line.partition(" #")[0].rstrip() for line in path.read_text().splitlines()]
    for line in displayed.splitlines():
        assert line.rstrip() in written, f"{line!r} is not in the example"
    for operation in packs.registry(load(path, {}).server).all():
        assert f"\n {operation.name} " in text, f"{operation.name} is not on the page"
