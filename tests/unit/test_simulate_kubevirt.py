"""The simulated Kubernetes API, proved over its sockets: real objects, real refusals."""

import json
from typing import Any

import pytest

from tests.support.held_timers import HeldTimers
from tests.support.simulated_client import Answer
from tests.support.simulated_kubernetes import ACTIONS, VMS, a_machine, simulating

VMIS = "/apis/kubevirt.io/v1/namespaces/test/virtualmachineinstances"


def check_status(answer: Answer, code: int, reason: str, message: str) -> None:
    said = answer.json
    assert answer.status == code
    assert (said["kind"], said["apiVersion"], said["status"]) == ("Status", "v1", "Failure")
    assert (said["code"], said["reason"], said["message"]) == (code, reason, message)


# --- Objects -----------------------------------------------------------------------------------------------


async def test_an_object_is_kept_with_an_identity_and_a_version_that_grows() -> None:
    async with simulating() as api:
        first, second = await api.made("a"), await api.made("b")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])
        assert first["metadata"]["namespace"] == "test"
        assert first["spec"] == a_machine()["spec"]
        assert (await api.ask("GET", f"{VMS}/a")).json == first
        listed = (await api.ask("GET", VMS)).json
        assert listed["kind"] == "VirtualMachineList"
        assert [vm["metadata"]["name"] for vm in listed["items"]] == ["a", "b"]


async def test_an_existing_object_is_not_created_again() -> None:
    async with simulating() as api:
        await api.made()
        refused = await api.ask("POST", VMS, a_machine())
        check_status(refused, 409, "AlreadyExists", 'virtualmachines.kubevirt.io "vm-1" already exists')
        assert refused.json["details"] == {"name": "vm-1", "group": "kubevirt.io", "kind": "virtualmachines"}


async def test_an_update_needs_the_latest_version() -> None:
    async with simulating() as api:
        vm = await api.made()
        vm["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = 2
        updated = await api.ask("PUT", f"{VMS}/vm-1", vm)
        assert updated.status == 200
        assert updated.json["metadata"]["generation"] == 2
        stale = await api.ask("PUT", f"{VMS}/vm-1", vm)
        check_status(
            stale,
            409,
            "Conflict",
            'Operation cannot be fulfilled on virtualmachines.kubevirt.io "vm-1": the object has been'
            " modified; please apply your changes to the latest version and try again",
        )
        del vm["metadata"]["resourceVersion"]
        assert (await api.ask("PUT", f"{VMS}/vm-1", vm)).status == 422


async def test_a_merge_patch_changes_what_it_names() -> None:
    async with simulating() as api:
        vm = await api.made()
        patch = {"metadata": {"labels": {"app": None, "tier": "web"}}}
        kind = "application/merge-patch+json"
        answer = await api.ask("PATCH", f"{VMS}/vm-1", patch, Content_Type=kind)
        assert answer.json["metadata"]["labels"] == {"tier": "web"}
        assert answer.json["spec"] == vm["spec"]
        stale = {"metadata": {"resourceVersion": vm["metadata"]["resourceVersion"], "labels": {}}}
        assert (await api.ask("PATCH", f"{VMS}/vm-1", stale, Content_Type=kind)).status == 409
        assert (await api.ask("PATCH", f"{VMS}/vm-1", patch)).status == 415


async def test_a_deleted_object_disappears_when_its_controller_allows_it() -> None:
    timers = HeldTimers()
    async with simulating(timers) as api:
        await api.made()
        answer = await api.ask("DELETE", f"{VMS}/vm-1")
        assert answer.status == 200
        assert answer.json["metadata"]["deletionTimestamp"]
        assert answer.json["metadata"]["finalizers"]
        again = await api.ask("POST", VMS, a_machine())
        check_status(
            again,
            409,
            "AlreadyExists",
            'object is being deleted: virtualmachines.kubevirt.io "vm-1" already exists',
        )
        timers.let_go()
        await api.until_gone()
        check_status(
            await api.ask("DELETE", f"{VMS}/vm-1"),
            404,
            "NotFound",
            'virtualmachines.kubevirt.io "vm-1" not found',
        )
        await api.made()


async def test_a_foreign_finalizer_keeps_the_object_until_it_is_removed() -> None:
    async with simulating() as api:
        wanted = a_machine()
        wanted["metadata"]["finalizers"] = ["example.com/backup"]
        await api.ask("POST", VMS, wanted)
        await api.ask("DELETE", f"{VMS}/vm-1")
        held = await api.until(
            f"{VMS}/vm-1", lambda answer: answer.json["metadata"]["finalizers"] == ["example.com/backup"]
        )
        assert held.json["metadata"]["deletionTimestamp"]
        patch: dict[str, Any] = {"metadata": {"finalizers": []}}
        await api.ask("PATCH", f"{VMS}/vm-1", patch, Content_Type="application/merge-patch+json")
        assert (await api.ask("GET", f"{VMS}/vm-1")).status == 404


async def test_a_delete_may_be_for_one_version_only() -> None:
    async with simulating() as api:
        vm = await api.made()
        for wrong in ({"uid": "other"}, {"resourceVersion": "0"}):
            assert (await api.ask("DELETE", f"{VMS}/vm-1", {"preconditions": wrong})).status == 409
        right = {"uid": vm["metadata"]["uid"], "resourceVersion": vm["metadata"]["resourceVersion"]}
        assert (await api.ask("DELETE", f"{VMS}/vm-1", {"preconditions": right})).status == 200


async def test_a_namespace_has_to_be_there_and_can_be_made() -> None:
    async with simulating() as api:
        elsewhere = VMS.replace("/test/", "/elsewhere/")
        refused = await api.ask("POST", elsewhere, a_machine())
        check_status(refused, 404, "NotFound", 'namespaces "elsewhere" not found')
        made = await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
        assert made.status == 201
        assert (await api.ask("POST", elsewhere, a_machine())).status == 201
        assert (await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "test"}})).status == 409


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": "Pod"}, 400),
        ({"apiVersion": "v1"}, 400),
        ({"metadata": {"name": "Not_A_Name"}}, 422),
        ({"metadata": {}}, 422),
        ({"metadata": {"name": "a", "namespace": "other"}}, 400),
        ({"spec": {}}, 422),
        ({"spec": {"template": {}}}, 422),
        ({"spec": {"template": {}, "running": True, "runStrategy": "Always"}}, 422),
        ({"spec": {"template": {}, "runStrategy": "Sometimes"}}, 422),
    ],
)
async def test_an_invalid_machine_is_refused(change: dict[str, Any], code: int) -> None:
    async with simulating() as api:
        answer = await api.ask("POST", VMS, {**a_machine(), **change})
        assert answer.status == code
        assert answer.json["kind"] == "Status"


# --- Power -------------------------------------------------------------------------------------------------


async def test_a_machine_starts_a_little_later_and_not_twice() -> None:
    async with simulating() as api:
        await api.made()
        accepted = await api.power("start")
        assert (accepted.status, accepted.body) == (202, b"")
        await api.until_it_is("Running")
        assert (await api.ask("GET", f"{VMIS}/vm-1")).json["status"]["phase"] == "Running"
        check_status(
            await api.power("start"),
            409,
            "Conflict",
            'Operation cannot be fulfilled on virtualmachine.kubevirt.io "vm-1": VM is already running',
        )


async def test_a_machine_that_always_runs_cannot_be_started() -> None:
    async with simulating(controller_ms=60_000.0) as api:
        await api.made(strategy="Always")
        refused = await api.power("start")
        assert refused.status == 409
        assert refused.json["message"].endswith("Always does not support manual start requests")


async def test_a_machine_stops_a_little_later_and_not_twice() -> None:
    async with simulating() as api:
        await api.made(strategy="Manual")
        assert (await api.power("start")).status == 202
        await api.until_it_is("Running")
        assert (await api.power("stop")).status == 202
        await api.until_it_is("Stopped")
        assert (await api.ask("GET", f"{VMIS}/vm-1")).status == 404
        check_status(
            await api.power("stop"),
            409,
            "Conflict",
            'Operation cannot be fulfilled on virtualmachine.kubevirt.io "vm-1": VM is not running',
        )


async def test_a_machine_that_is_stopping_is_not_stopped_again() -> None:
    timers = HeldTimers()
    async with simulating(timers) as api:
        await api.made(strategy="Always")
        timers.go_off()
        await api.until_it_is("Running")
        assert (await api.power("stop")).status == 202
        refused = await api.power("stop")
        assert (
            "Halted only supports manual stop requests with a shorter graceperiod" in refused.json["message"]
        )
        timers.let_go()
        await api.until_it_is("Stopped")


async def test_a_restart_creates_a_new_instance_of_a_running_machine() -> None:
    timers = HeldTimers()
    async with simulating(timers) as api:
        await api.made(strategy="Always")
        timers.go_off()
        await api.until_it_is("Running")
        before = (await api.ask("GET", f"{VMIS}/vm-1")).json["metadata"]["uid"]
        assert (await api.power("restart")).status == 202
        underway = await api.power("restart")
        check_status(
            underway,
            500,
            "InternalError",
            "Internal error occurred: unable to complete request: stop/start already underway",
        )
        timers.let_go()
        await api.until(f"{VMIS}/vm-1", lambda answer: answer.json["metadata"]["uid"] != before)
        await api.until_it_is("Running")


async def test_a_machine_that_does_not_run_is_not_restarted() -> None:
    async with simulating() as api:
        await api.made("halted")
        await api.made("manual", "Manual")
        refused = await api.power("restart", "halted")
        assert refused.json["message"].endswith("RunStategy Halted does not support manual restart requests")
        refused = await api.power("restart", "manual")
        assert refused.json["message"].endswith("VM is not running: Halted")
        assert (await api.power("restart", "manual", {"gracePeriodSeconds": 5})).status == 400


async def test_power_actions_on_an_unknown_machine_are_not_found() -> None:
    async with simulating() as api:
        for action in ("start", "stop", "restart"):
            refused = await api.power(action, "nobody")
            check_status(refused, 404, "NotFound", 'virtualmachine.kubevirt.io "nobody" not found')


# --- The API itself ----------------------------------------------------------------------------------------


async def test_a_token_is_required_if_one_is_set() -> None:
    async with simulating(token="t0ken") as api:
        check_status(await api.ask("GET", VMS), 401, "Unauthorized", "Unauthorized")
        assert (await api.ask("GET", VMS, Authorization="Bearer wrong")).status == 401
        assert (await api.ask("GET", VMS, Authorization="Bearer t0ken")).status == 200
        assert (await api.ask("GET", "/stats")).status == 200


async def test_unknown_paths_and_methods_are_refused_as_kubernetes_does() -> None:
    async with simulating() as api:
        assert (await api.ask("GET", "/apis/other/v1/things")).json["reason"] == "NotFound"
        assert (await api.ask("POST", f"{VMS}/vm-1", {})).json["reason"] == "MethodNotAllowed"
        assert (await api.ask("GET", f"{ACTIONS}/vm-1/start")).status == 405
        assert (await api.ask("POST", VMS, [])).json["reason"] == "BadRequest"
        assert (await api.ask("GET", "/version")).json["major"] == "1"
        assert (await api.ask("GET", "/apis/kubevirt.io/v1")).json["kind"] == "APIResourceList"


async def test_errors_have_the_format_of_kubernetes() -> None:
    async with simulating(error_rate=1.0) as api:
        reasons = {(await api.ask("GET", VMS)).json["reason"] for _ in range(20)}
        assert reasons == {"InternalError", "ServiceUnavailable"}


async def test_too_many_requests_get_a_retry_after() -> None:
    async with simulating(rate_limit=0.001) as api:
        answers = [await api.ask("GET", VMS) for _ in range(3)]
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.json["reason"] == "TooManyRequests"
        assert int(refused.headers["retry-after"]) >= 1


async def test_stats_and_the_record_say_what_was_done() -> None:
    async with simulating(record=True) as api:
        await api.made()
        await api.ask("POST", VMS, a_machine(), Idempotency_Key="k1")
        await api.power("start")
        await api.until_it_is("Running")
        stats = (await api.ask("GET", "/stats")).json
        assert stats["by_verb"]["post"] == 1
        assert stats["by_verb"]["start"] == 1
        assert stats["by_status"]["409"] == 1
        assert stats["objects"] == {
            "namespaces": 4,
            "virtualmachines": 1,
            "virtualmachineinstances": 1,
            "terminating": 0,
        }
        records = [json.loads(line) for line in (await api.ask("GET", "/executions")).body.splitlines()]
        assert records[1] == {"method": "POST", "path": VMS, "status": 409, "key": "k1"}
        empty = (await api.ask("POST", "/reset")).json
        assert (empty["requests"], empty["objects"]["virtualmachines"]) == (0, 0)
