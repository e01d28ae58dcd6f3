"""Processes that erase a tenant are killed at every step, and a server and its worker erase one."""

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from batchline.batches import erasure
from batchline.batches.erasure import ErasureProgress
from batchline.files.objects import Objects
from batchline.governance import keys
from batchline.governance import tenants as governed
from batchline.model import Role
from batchline.store import doctor, providers
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import on, sql
from tests.support.erasure_killed import STATEMENTS
from tests.support.objects import keys as object_keys
from tests.support.processes import simulated, write_requests
from tests.support.repository import ROOT
from tests.support.server_process import ended, served, submit
from tests.support.tenants import KEPT, OPERATOR, a_full_tenant, identity_of, traces
from tests.support.waiting import wait_for


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_process_that_is_killed_at_any_step_leaves_what_the_next_one_erases(
    db: Session, database_url: str, tmp_path: Path, moment: str
) -> None:
    """One process after the other continues, until each has been killed at its step."""
    objects = Objects.at(tmp_path / "objects")
    await a_full_tenant(db, objects, "acme")
    acme = await identity_of(db, "acme")
    await governed.begin_erasure(db, OPERATOR, "acme")
    while tasks := await providers.take_abandoned(db, Scope()):
        await providers.drop_abandoned(db, tasks)
    killed = []
    for name in STATEMENTS:
        command = [sys.executable, "-m", "tests.support.erasure_killed"]
        process = subprocess.run(  # noqa: ASYNC221
            [*command, database_url, str(tmp_path / "objects"), "acme", moment, name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert process.returncode in (-9, 3), process.stderr
        killed += [name] if process.returncode == -9 else []
        while tasks := await providers.take_abandoned(db, Scope()):
            await providers.drop_abandoned(db, tasks)
        assert (await governed.get(db, "acme")).erasing_at is not None
    assert killed[0] == "close"
    assert killed[-1] == "finish_erasure"
    assert len(killed) >= len(STATEMENTS) - 2, killed
    assert await erasure.erase(db, objects, "acme", seconds=600) is ErasureProgress.DONE
    assert set(await traces(db, acme)) == KEPT
    left = [key for folder in ("inputs/", "outputs/", "parts/") for key in await object_keys(objects, folder)]
    assert left == []
    assert (await doctor.examine(db)).findings == ()


def test_a_server_erases_a_running_tenant_while_another_one_works(database_url: str, tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    settings = tmp_path / "batchline.toml"
    with simulated("--latency", "50") as upstream:
        settings.write_text(f'[[upstreams]]\nname = "sim"\nbase_url = "{upstream.url}"\n')
        with served(database_url, tmp_path, "--config", str(settings)) as server:
            secrets = on(database_url, some_keys)
            acme, other = server.client(secrets["acme"]), server.client(secrets["other"])
            with acme, other, httpx2.Client(base_url=server.url, timeout=60) as http:
                submit(acme, inputs)
                kept = submit(other, inputs)
                http.headers["authorization"] = f"Bearer {secrets['ops']}"
                path = "/api/v1/admin/tenants/acme"
                begun = http.post(f"{path}/erase", json={"confirm": "acme", "reason": "they left"})
                assert (begun.status_code, begun.json()["status"]) == (202, "erasing")
                refused = httpx2.get(
                    f"{server.url}/v1/files", headers={"authorization": f"Bearer {secrets['acme']}"}
                )
                assert refused.status_code == 401, "its key stops working at once"
                wait_for("the erasure", lambda: http.get(path).json()["status"] == "erased")
                over = ended(other, kept)
                assert over.request_counts is not None
                assert (over.status, over.request_counts.completed) == ("completed", 300)
    query = "SELECT DISTINCT relation FROM batchline.tenant_data WHERE tenant = 'acme'"
    assert on(database_url, lambda db: sql(db, query)) == []
    assert on(database_url, doctor.examine).findings == ()


async def some_keys(db: Session) -> dict[str, str]:
    roles = {"acme": Role.USER, "other": Role.USER, "ops": Role.OPERATOR}
    return {tenant: (await keys.create(db, tenant, tenant, role))[1] for tenant, role in roles.items()}
