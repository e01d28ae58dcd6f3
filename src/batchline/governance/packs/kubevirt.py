"""Virtual machines on KubeVirt: create, delete, start, stop and restart, as requests to a Kubernetes API.

If the API refuses a request because the machine is already gone, running or stopped, the item is done. So an
attempt whose answer was lost can be repeated. The messages below are those of KubeVirt's virt-api: its
conflicts all have the same reason, and only the message distinguishes them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchline.config.settings import PackSettings
from batchline.governance.operations import ALWAYS, NEVER, InvalidOperation, Operation
from batchline.governance.outcomes import Means, Outcome
from batchline.governance.templates import RequestTemplate

_OBJECTS = "/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines"
_OBJECT = f"{_OBJECTS}/{{name}}"
_ACTIONS = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}"

_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_NAMESPACE = {"type": "string", "pattern": _LABEL, "maxLength": 63, "description": "The machine's namespace."}
_NAME = {"type": "string", "pattern": _LABEL, "maxLength": 63, "description": "The machine's name."}
_DISK = "root"
_CLOUD_INIT = "cloudinit"


def operations(settings: PackSettings) -> tuple[Operation, ...]:
    """The operations of the pack, with the settings applied. Raises InvalidOperation."""
    made = {operation.name: operation for operation in _defaults(settings.upstream)}
    rules, submitters = settings.approval, settings.submitters
    if isinstance(rules, str):
        rules = dict.fromkeys(made, rules)
    if isinstance(submitters, tuple):
        submitters = dict.fromkeys(made, submitters)
    tables: dict[str, Mapping[str, Any]] = {
        "approval": rules or {},
        "submitters": submitters or {},
        "largest_batch": settings.largest_batch,
    }
    for key, table in tables.items():
        for name, value in table.items():
            if name not in made:
                raise InvalidOperation(
                    key, f"unknown operation {name!r}; known operations: {', '.join(made)}"
                )
            changes: dict[str, Any] = {key: value}
            made[name] = replace(made[name], **changes)
    return tuple(replace(each, self_approval=settings.self_approval) for each in made.values())


def _defaults(upstream: str) -> tuple[Operation, ...]:
    return (
        Operation(
            "vm_create",
            RequestTemplate(upstream, _OBJECTS, body=_machine),
            "Create a virtual machine",
            _schema(
                {
                    "cpu": {"type": "integer", "minimum": 1, "maximum": 512, "description": "Cores."},
                    "memory": {
                        "type": "string",
                        "pattern": "^[1-9][0-9]*(Mi|Gi|Ti)$",
                        "description": "A Kubernetes quantity, such as 4Gi.",
                    },
                    "image": {"type": "string", "minLength": 1, "description": "A container disk's image."},
                    "run_strategy": {"enum": ["Always", "Halted", "Manual", "RerunOnFailure", "Once"]},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    "user_data": {"type": "string", "description": "cloud-init data. It is never shown."},
                },
                "cpu",
                "memory",
                "image",
            ),
            largest_batch=10,
            approval=ALWAYS,
            redact=("user_data", "userData", "userDataBase64"),
            outcomes=(
                Outcome(409, Means.SAME, "answer.reason == 'AlreadyExists'"),
                Outcome(409, Means.RETRY),
            ),
            confirm=_OBJECT,
            gone_when="metadata.deletionTimestamp",
        ),
        Operation(
            "vm_delete",
            RequestTemplate(upstream, _OBJECT, "DELETE", body=None),
            "Delete a virtual machine",
            _schema({}),
            largest_batch=10,
            approval=ALWAYS,
            outcomes=(Outcome(404, Means.DONE), Outcome(409, Means.RETRY)),
        ),
        Operation(
            "vm_start",
            RequestTemplate(upstream, f"{_ACTIONS}/start", "PUT", body={}),
            "Start a virtual machine",
            _schema({}),
            largest_batch=50,
            approval=NEVER,
            outcomes=(
                _conflict(Means.DONE, "VM is already running"),
                # A start was requested, by us or at creation, and the machine does not run yet.
                _conflict(Means.DONE, "Always does not support manual start requests"),
                *_CONFLICTS,
            ),
        ),
        Operation(
            "vm_stop",
            RequestTemplate(upstream, f"{_ACTIONS}/stop", "PUT", body={"gracePeriod": "{grace_period}"}),
            "Stop a virtual machine",
            _schema({"grace_period": {"type": "integer", "minimum": 0, "description": "Seconds."}}),
            largest_batch=50,
            approval=NEVER,
            outcomes=(
                _conflict(Means.DONE, "VM is not running"),
                # A stop was requested, and the machine still runs.
                _conflict(Means.DONE, "Halted only supports manual stop requests with a shorter graceperiod"),
                *_CONFLICTS,
            ),
        ),
        Operation(
            "vm_restart",
            RequestTemplate(upstream, f"{_ACTIONS}/restart", "PUT", body={}),
            "Restart a virtual machine that runs",
            _schema({}),
            largest_batch=50,
            approval=NEVER,
            outcomes=_CONFLICTS,
        ),
    )


def _conflict(means: Means, message: str) -> Outcome:
    return Outcome(409, means, f"contains(answer.message, '{message}')")


# A concurrent change of the object: retry. All other conflicts mean that the machine is in the wrong state,
# which a retry does not change.
_CONFLICTS = (
    _conflict(Means.RETRY, "the object has been modified"),
    _conflict(Means.RETRY, "the server rejected our request due to an error in our request"),
    _conflict(Means.RETRY, "jsonpatch test operation does not apply"),
    Outcome(409, Means.FAILED),
)


def _schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"namespace": _NAMESPACE, "name": _NAME, **properties},
        "required": ["namespace", "name", *required],
        "additionalProperties": False,
    }


def _machine(item: Mapping[str, Any]) -> dict[str, Any]:
    """The VirtualMachine for an item."""
    disks = [{"name": _DISK, "disk": {"bus": "virtio"}}]
    volumes: list[dict[str, Any]] = [{"name": _DISK, "containerDisk": {"image": item["image"]}}]
    if "user_data" in item:
        disks.append({"name": _CLOUD_INIT, "disk": {"bus": "virtio"}})
        volumes.append({"name": _CLOUD_INIT, "cloudInitNoCloud": {"userData": item["user_data"]}})
    domain = {
        "cpu": {"cores": item["cpu"]},
        "memory": {"guest": item["memory"]},
        "devices": {"disks": disks},
    }
    labels = {"labels": item["labels"]} if item.get("labels") else {}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": item["name"], "namespace": item["namespace"], **labels},
        "spec": {
            "runStrategy": item.get("run_strategy", "Always"),
            "template": {
                **({"metadata": labels} if labels else {}),
                "spec": {"domain": domain, "volumes": volumes},
            },
        },
    }
