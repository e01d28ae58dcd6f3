"""The KubeVirt pack, through a real worker, against a simulated Kubernetes API that keeps real objects."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from batchline.config import SettingsError, load
from batchline.config.settings import (
    LimitSettings,
    PackSettings,
    ServerSettings,
    UpstreamSettings,
    WorkerSettings,
)
from batchline.executors.http import HttpExecutor
from batchline.executors.operation import OperationExecutor
from batchline.executors.routing import RoutingExecutor
from batchline.files.objects import Objects
from batchline.governance import access, decisions, packs, submissions
from batchline.governance.access import Actor
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.governance.submissions import Submission
from batchline.governance.templates import RequestTemplate
from batchline.model import Child, ChildStatus, GovernedBatch, ParentStatus, Role
from batchline.secrets.masking import MASK
from batchline.store import operations
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import HttpSettings, Upstreams
from batchline.upstreams.retry import Backoff
from batchline.worker.worker import Worker
from tests.support.builders import on, sql
from tests.support.processes import kill, simulated_cluster, working
from tests.support.simulated_kubernetes import VMS, Api, a_machine, simulating
from tests.support.waiting import wait_for

ADMIN = Actor("default", "root", Role.ADMIN)
APPROVER = Actor("default", "carla", Role.APPROVER)
TOKEN = "a-token-of-the-cluster"
NO_LIMITS = LimitSettings(user_pending_parents=100, user_pending_children=1000, cooldown_seconds=0)
QUICK = HttpSettings(retry=Backoff(minimum=0.05, maximum=0.2))


def settings(url: str, **pack: Any) -> ServerSettings:
    return ServerSettings(
        upstreams=(UpstreamSettings("cluster", url, "CLUSTER_TOKEN", models=()),),
        packs=(PackSettings("kubevirt", "cluster", **pack),),
    )


def an_item(name: str = "vm-1", **changes: Any) -> dict[str, Any]:
    made = {"namespace": "test", "name": name, "cpu": 2, "memory": "2Gi", "image": "fedora:42"}
    return {**made, "run_strategy": "Halted", **changes}


def named(*names: str, namespace: str = "test") -> list[dict[str, Any]]:
    return [{"namespace": namespace, "name": name} for name in names]


class Cluster:
    """A cluster, a worker that works for it, and a user who asks for things."""

    def __init__(self, api: Api, session: Session, rules: Rules) -> None:
        self.api = api
        self.session = session
        self.rules = rules

    async def run(self, operation: str, items: list[dict[str, Any]]) -> tuple[GovernedBatch, list[Child]]:
        """Submit, approve where it must be, and wait for the end."""
        submitted = await submissions.submit(self.rules, self.session, ADMIN, Submission(operation, items))
        batch = submitted.batch
        if batch.status is ParentStatus.PENDING_APPROVAL:
            await decisions.approve(self.rules, self.session, APPROVER, batch.id)
        async with asyncio.timeout(120):
            while (batch := await access.visible(self.session, ADMIN, batch.id)).counts.pending:
                await _a_glance_later()
        return batch, await operations.children(self.session, batch.id, after=0, limit=100)


@asynccontextmanager
async def a_cluster(url: str, folder: Path, **simulated: Any) -> AsyncIterator[Cluster]:
    async with simulating(token=TOKEN, **simulated) as api:
        api.headers = {"Authorization": f"Bearer {TOKEN}"}
        chosen = settings(f"http://{api.host}:{api.port}")
        registry = packs.registry(chosen)
        http = HttpExecutor(Upstreams(QUICK, environ={"CLUSTER_TOKEN": TOKEN}))
        executor = OperationExecutor(
            registry, chosen.upstreams, http, RoutingExecutor(chosen.upstreams, http)
        )
        worker = Worker(url, executor, Objects.at(folder), WorkerSettings(poll_min=0.05), Scope())
        async with Session(url, "test") as session:
            working = asyncio.create_task(worker.run())
            try:
                yield Cluster(api, session, Rules(registry, NO_LIMITS))
            finally:
                worker.stop()
                await working
                await executor.close()


def outcomes(children: list[Child]) -> list[tuple[ChildStatus, int | None, int]]:
    return [(child.status, child.status_code, child.attempt_count) for child in children]


def message(child: Child) -> str:
    said: str = json.loads(child.output or "{}")["response"]["body"]["message"]
    return said


async def _a_glance_later() -> None:
    await asyncio.sleep(0.01)


DONE, LOST = ChildStatus.SUCCEEDED, ChildStatus.FAILED


# --- The life of machines ----------------------------------------------------------------------------------


async def test_machines_are_created_started_restarted_stopped_and_deleted(
    database_url: str, tmp_path: Path
) -> None:
    names = [f"vm-{number}" for number in range(5)]
    async with a_cluster(database_url, tmp_path) as cluster:
        batch, children = await cluster.run("vm_create", [an_item(name) for name in names])
        assert batch.status is ParentStatus.COMPLETED
        assert outcomes(children) == [(DONE, 201, 1)] * 5
        made = (await cluster.api.ask("GET", f"{VMS}/vm-3")).json
        assert made["spec"]["template"]["spec"]["domain"]["cpu"] == {"cores": 2}
        assert made["spec"]["template"]["spec"]["domain"]["memory"] == {"guest": "2Gi"}
        for operation, status in (("vm_start", "Running"), ("vm_stop", "Stopped")):
            batch, children = await cluster.run(operation, named(*names))
            assert outcomes(children) == [(DONE, 202, 1)] * 5, children
            for name in names:
                await cluster.api.until_it_is(status, name)
        batch, children = await cluster.run("vm_delete", named(*names))
        assert outcomes(children) == [(DONE, 200, 1)] * 5
        for name in names:
            await cluster.api.until_gone(name)


async def test_a_restart_is_one_of_a_machine_that_runs(database_url: str, tmp_path: Path) -> None:
    async with a_cluster(database_url, tmp_path) as cluster:
        await cluster.run("vm_create", [an_item("on", run_strategy="Always"), an_item("off")])
        await cluster.api.until_it_is("Running", "on")
        batch, (on, off) = await cluster.run("vm_restart", named("on", "off"))
        assert batch.status is ParentStatus.PARTIAL_SUCCESS
        assert (on.status, off.status, off.attempt_count) == (DONE, LOST, 1)
        assert "does not support manual restart requests" in message(off)


# --- Outcomes that are what they are -----------------------------------------------------------------------


async def test_a_machine_that_is_already_in_the_requested_state_is_a_success(
    database_url: str, tmp_path: Path
) -> None:
    async with a_cluster(database_url, tmp_path) as cluster:
        await cluster.run(
            "vm_create", [an_item("on", run_strategy="Always"), an_item("off", run_strategy="Manual")]
        )
        await cluster.api.until_it_is("Running", "on")
        for operation, name, code in (
            ("vm_start", "on", 409),
            ("vm_stop", "off", 409),
            ("vm_delete", "nobody", 404),
        ):
            batch, children = await cluster.run(operation, named(name))
            assert batch.status is ParentStatus.COMPLETED
            assert outcomes(children) == [(DONE, code, 1)]


async def test_a_start_that_is_under_way_is_done(database_url: str, tmp_path: Path) -> None:
    async with a_cluster(database_url, tmp_path, controller_ms=60_000.0) as cluster:
        await cluster.run("vm_create", [an_item()])
        for code in (202, 409):
            _, children = await cluster.run("vm_start", named("vm-1"))
            assert outcomes(children) == [(DONE, code, 1)]


async def test_an_identical_machine_counts_as_created(database_url: str, tmp_path: Path) -> None:
    async with a_cluster(database_url, tmp_path) as cluster:
        await cluster.run("vm_create", [an_item()])
        _, children = await cluster.run("vm_create", [an_item()])
        assert outcomes(children) == [(DONE, 200, 1)]
        batch, (child,) = await cluster.run("vm_create", [an_item(cpu=4)])
        assert batch.status is ParentStatus.FAILED
        assert outcomes([child]) == [(LOST, 409, 1)]
        assert message(child) == 'virtualmachines.kubevirt.io "vm-1" already exists'


async def test_a_machine_is_created_after_its_deletion(database_url: str, tmp_path: Path) -> None:
    async with a_cluster(database_url, tmp_path, controller_ms=40.0) as cluster:
        await cluster.run("vm_create", [an_item()])
        before = (await cluster.api.ask("GET", f"{VMS}/vm-1")).json["metadata"]["uid"]
        await cluster.run("vm_delete", named("vm-1"))
        _, (child,) = await cluster.run("vm_create", [an_item()])
        assert (child.status, child.status_code) == (DONE, 201)
        assert (await cluster.api.ask("GET", f"{VMS}/vm-1")).json["metadata"]["uid"] != before


async def test_a_missing_machine_fails_to_start_and_its_siblings_are_not_affected(
    database_url: str, tmp_path: Path
) -> None:
    async with a_cluster(database_url, tmp_path) as cluster:
        await cluster.run("vm_create", [an_item("a"), an_item("b")])
        batch, children = await cluster.run("vm_start", named("a", "nobody", "b"))
        assert batch.status is ParentStatus.PARTIAL_SUCCESS
        assert outcomes(children) == [(DONE, 202, 1), (LOST, 404, 1), (DONE, 202, 1)]
        assert message(children[1]) == 'virtualmachine.kubevirt.io "nobody" not found'


async def test_a_missing_namespace_fails_the_item(database_url: str, tmp_path: Path) -> None:
    async with a_cluster(database_url, tmp_path) as cluster:
        batch, (child,) = await cluster.run("vm_create", [an_item(namespace="elsewhere")])
        assert batch.status is ParentStatus.FAILED
        assert message(child) == 'namespaces "elsewhere" not found'


async def test_machines_are_created_once_even_if_answers_are_lost_and_servers_fail(
    database_url: str, tmp_path: Path
) -> None:
    names = [f"vm-{number}" for number in range(10)]
    async with a_cluster(database_url, tmp_path, error_rate=0.2, drop_rate=0.3, seed=5) as cluster:
        _, children = await cluster.run("vm_create", [an_item(name) for name in names])
        stats = (await cluster.api.ask("GET", "/stats")).json
        made = stats["objects"]["virtualmachines"]
        # Attempts are few, and each may meet a fault: what failed was told, and what was done was done once.
        succeeded = sum(child.status is DONE for child in children)
        assert made >= succeeded
        assert stats["by_verb"]["post"] == made
        assert any(child.attempt_count > 1 for child in children)


def test_each_machine_is_created_once_even_if_a_worker_is_killed(database_url: str, tmp_path: Path) -> None:
    config = tmp_path / "batchline.toml"
    with simulated_cluster("--latency", "6000") as cluster:
        config.write_text(
            f'[[upstreams]]\nname = "cluster"\nbase_url = "{cluster.url}"\nconcurrency = 10\n'
            '[packs.kubevirt]\nupstream = "cluster"\napproval = "never"\n'
        )
        rules = Rules(packs.registry(load(config, {}).server), NO_LIMITS)
        wanted = [an_item(f"vm-{number}") for number in range(10)]

        async def submit(session: Session) -> UUID:
            return (await submissions.submit(rules, session, ADMIN, Submission("vm_create", wanted))).batch.id

        async def look(session: Session) -> GovernedBatch:
            return await access.visible(session, ADMIN, batch_id)

        batch_id = on(database_url, submit)
        # The second one notices that the first is dead: it need not wait for the end of the lease.
        options = ("--config", str(config), "--lease", "60")
        with working(database_url, tmp_path, *options) as doomed:
            wait_for("all ten in flight", lambda: cluster.stats()["in_flight"] == 10)
            kill(doomed)
        with working(database_url, tmp_path, *options):
            wait_for("the end", lambda: not on(database_url, look).counts.pending)
        batch = on(database_url, look)
        assert (batch.status, batch.completed) == (ParentStatus.COMPLETED, 10)
        stats = cluster.stats()
        # What the dead one had sent was done; asked again, it was there as it was asked for.
        assert (stats["objects"]["virtualmachines"], stats["by_verb"]["post"]) == (10, 10)
        assert stats["by_status"]["409"] == 10


async def test_an_unknown_operation_fails_its_items_and_the_batch_still_ends(
    database_url: str, tmp_path: Path
) -> None:
    async with a_cluster(database_url, tmp_path) as cluster:
        forgotten = Operation("forgotten", RequestTemplate("cluster", "/x"))
        cluster.rules = Rules(Registry([forgotten]), NO_LIMITS)
        batch, children = await cluster.run("forgotten", [{}, {}])
        assert batch.status is ParentStatus.FAILED
        assert [json.loads(child.output or "")["error"]["code"] for child in children] == [
            "unknown_operation"
        ] * 2


async def test_cloud_init_is_sent_and_never_displayed(database_url: str, tmp_path: Path) -> None:
    secret = "#cloud-config\nchpasswd: {list: 'root:hunter2'}"
    async with a_cluster(database_url, tmp_path) as cluster:
        _, (child,) = await cluster.run("vm_create", [an_item(user_data=secret)])
        made = (await cluster.api.ask("GET", f"{VMS}/vm-1")).json
        assert made["spec"]["template"]["spec"]["volumes"][1]["cloudInitNoCloud"] == {"userData": secret}
        assert "hunter2" not in (child.output or "")
        assert MASK in (child.output or "")
        audited = await sql(cluster.session, "SELECT detail::text FROM batchline.audit_log")
        assert audited
        assert not any("hunter2" in text for (text,) in audited)


# --- The pack as it is wanted ------------------------------------------------------------------------------


def test_the_pack_has_the_contracts_sizes_and_careful_approvals() -> None:
    made = packs.registry(settings("http://x"))
    assert {each.name: (each.largest_batch, each.approval) for each in made.all()} == {
        "vm_create": (10, "always"),
        "vm_delete": (10, "always"),
        "vm_start": (50, "never"),
        "vm_stop": (50, "never"),
        "vm_restart": (50, "never"),
        # Not the pack's own, but there wherever something can wait for an approval.
        "approve": (20, "never"),
    }


def test_rules_and_sizes_can_be_set_for_all_or_for_some() -> None:
    for_all = packs.registry(settings("http://x", approval="namespace == 'production'"))
    rules = {each.name: each.approval for each in for_all.all()}
    assert rules.pop("approve") == "never"
    assert set(rules.values()) == {"namespace == 'production'"}
    for_some = packs.registry(
        settings("http://x", approval={"vm_create": "cpu > `8`"}, largest_batch={"vm_start": 7})
    )
    assert for_some.get("vm_create").approval == "cpu > `8`"
    assert for_some.get("vm_delete").approval == "always"
    assert for_some.get("vm_start").largest_batch == 7
    assert not any(each.self_approval for each in for_some.all())
    trusting = packs.registry(settings("http://x", self_approval=True))
    assert all(each.self_approval for each in trusting.all() if each.name.startswith("vm_"))
    closed = packs.registry(settings("http://x", submitters=("role:admin",)))
    assert {each.submitters for each in closed.all() if each.name.startswith("vm_")} == {("role:admin",)}
    partly = packs.registry(settings("http://x", submitters={"vm_delete": ("alice",)}))
    assert partly.get("vm_delete").submitters == ("alice",)
    assert partly.get("vm_create").submitters is None


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        ('kubvirt = { upstream = "cluster" }', "unknown pack 'kubvirt'; known packs: kubevirt"),
        ('kubevirt = { upstream = "nowhere" }', "there is no upstream 'nowhere'"),
        ("kubevirt = { }", "packs.kubevirt.upstream: is missing"),
        (
            'kubevirt = { upstream = "cluster", aproval = "x" }',
            "packs.kubevirt.aproval: unknown key; did you mean approval?",
        ),
        (
            'kubevirt = { upstream = "cluster", approval = { vm_crate = "never" } }',
            "unknown operation 'vm_crate'",
        ),
        ('kubevirt = { upstream = "cluster", approval = "cpu > `8`" }', "the schema has no field 'cpu'"),
        (
            'kubevirt = { upstream = "cluster", submitters = { vm_delete = [] } }',
            "packs.kubevirt.submitters: must be",
        ),
        (
            'kubevirt = { upstream = "cluster", submitters = ["role:root"] }',
            "'role:root': the roles are user",
        ),
    ],
)
def test_a_mistake_in_the_packs_settings_is_named_with_its_line(tmp_path: Path, pack: str, said: str) -> None:
    path = tmp_path / "batchline.toml"
    path.write_text(f'[[upstreams]]\nname = "cluster"\nbase_url = "http://x"\n\n[packs]\n{pack}\n')
    with pytest.raises(SettingsError, match="line 6: ") as refused:
        packs.registry(load(path, {}).server)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "item",
    [
        {"name": "../x"},
        {"name": "UPPER"},
        {"namespace": "a/b"},
        {"cpu": 0},
        {"memory": "2 GB"},
        {"surprise": 1},
        {"run_strategy": "Sometimes"},
    ],
)
def test_items_that_are_no_machines_are_refused_when_they_are_submitted(item: dict[str, Any]) -> None:
    create = packs.registry(settings("http://x")).get("vm_create")
    assert create.faults([an_item()]) == []
    assert create.faults([an_item(**item)])


def test_a_created_machine_is_what_the_simulated_api_takes() -> None:
    request = packs.registry(settings("http://x")).get("vm_create").request
    assert request is not None
    body = json.loads(request.render(an_item(labels={"app": "x"})).body or b"")
    assert body["metadata"]["labels"] == a_machine()["metadata"]["labels"]
    assert body["kind"] == a_machine()["kind"]
