"""The objects of a simulated cluster: namespaces, virtual machines and their instances.

Every change increases the cluster's resource version. Controllers act a little later. Only what bulk
operations need is supported: no watches, no pods, no disks. The rules and messages of start, stop and restart
are those of KubeVirt's virt-api.
"""

import copy
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import uuid4

from examples.kubevirt import statuses

Object: TypeAlias = dict[str, Any]
Later: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules an act of the controllers."""

VMS = "virtualmachines"
VMIS = "virtualmachineinstances"
NAMESPACES = "namespaces"
# The name of a machine in errors of virt-api; the API server uses another one.
_VM = "virtualmachine"
_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
_STRATEGIES = ("Halted", "Manual", "Always", "RerunOnFailure", "Once")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


class Cluster:
    def __init__(self, namespaces: tuple[str, ...], later: Later) -> None:
        self._later = later
        self._version = 0
        self._namespaces: dict[str, Object] = {}
        self._machines: dict[tuple[str, str], Object] = {}
        self._instances: dict[tuple[str, str], Object] = {}
        for name in namespaces:
            self.create_namespace({"metadata": {"name": name}})

    # --- Namespaces ----------------------------------------------------------------------------------------

    def namespaces(self) -> Object:
        return self._list("v1", "Namespace", self._namespaces.values())

    def namespace(self, name: str) -> Object:
        found = self._namespaces.get(name)
        if found is None:
            raise statuses.not_found(NAMESPACES, name)
        return copy.deepcopy(found)

    def create_namespace(self, wanted: Object) -> Object:
        name = _name(wanted, "Namespace")
        if name in self._namespaces:
            raise statuses.already_exists(NAMESPACES, name, going=False)
        made = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": self._metadata({"name": name}),
            "status": {"phase": "Active"},
        }
        self._namespaces[name] = made
        return copy.deepcopy(made)

    # --- Machines ------------------------------------------------------------------------------------------

    def machines(self, namespace: str | None = None) -> Object:
        return self._list(
            "kubevirt.io/v1",
            "VirtualMachine",
            [vm for (where, _), vm in self._machines.items() if namespace in (None, where)],
        )

    def machine(self, namespace: str, name: str) -> Object:
        return copy.deepcopy(self._found(namespace, name))

    def instances(self, namespace: str | None = None) -> Object:
        return self._list(
            "kubevirt.io/v1",
            "VirtualMachineInstance",
            [vmi for (where, _), vmi in self._instances.items() if namespace in (None, where)],
        )

    def instance(self, namespace: str, name: str) -> Object:
        found = self._instances.get((namespace, name))
        if found is None:
            raise statuses.not_found(VMIS, name)
        return copy.deepcopy(found)

    def create(self, namespace: str, wanted: Object) -> Object:
        _check_kind(wanted)
        name = _name(wanted, "VirtualMachine")
        if wanted["metadata"].get("namespace", namespace) != namespace:
            raise statuses.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if wanted["metadata"].get("resourceVersion"):
            raise statuses.bad_request("resourceVersion should not be set on objects to be created")
        self.namespace(namespace)
        _check_spec(wanted)
        existing = self._machines.get((namespace, name))
        if existing is not None:
            raise statuses.already_exists(VMS, name, going="deletionTimestamp" in existing["metadata"])
        metadata = {**wanted["metadata"], "namespace": namespace}
        metadata["finalizers"] = [*metadata.get("finalizers", []), _FINALIZER]
        made: Object = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": self._metadata(metadata),
            "spec": copy.deepcopy(wanted["spec"]),
        }
        made["metadata"]["generation"] = 1
        self._machines[namespace, name] = made
        if _strategy(made) in ("Always", "RerunOnFailure", "Once"):
            self._starts(made)
        else:
            made["status"] = {"printableStatus": "Stopped"}
        return copy.deepcopy(made)

    def update(self, namespace: str, name: str, wanted: Object) -> Object:
        _check_kind(wanted)
        existing = self._found(namespace, name)
        _check_spec(wanted)
        version = wanted.get("metadata", {}).get("resourceVersion")
        if not version:
            why = "Invalid value: 0x0: must be specified for an update"
            raise statuses.invalid(VMS, name, "metadata.resourceVersion", why)
        if version != existing["metadata"]["resourceVersion"]:
            raise statuses.modified(VMS, name)
        return self._replaced(existing, wanted)

    def patch(self, namespace: str, name: str, changes: Object) -> Object:
        """Apply a merge patch. If it has a resource version, it applies only to that version."""
        existing = self._found(namespace, name)
        version = changes.get("metadata", {}).get("resourceVersion")
        if version and version != existing["metadata"]["resourceVersion"]:
            raise statuses.modified(VMS, name)
        wanted = _merged(existing, changes)
        _check_spec(wanted)
        return self._replaced(existing, wanted)

    def delete(self, namespace: str, name: str, options: Object) -> Object:
        existing = self._found(namespace, name)
        _check_preconditions(options, existing)
        metadata = existing["metadata"]
        if not metadata["finalizers"]:
            del self._machines[namespace, name]
            return _success(existing)
        if "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = _now()
            metadata["deletionGracePeriodSeconds"] = 0
            metadata["generation"] += 1
            existing.setdefault("status", {})["printableStatus"] = "Terminating"
            self._touch(existing)
            self._later(lambda: self._finalized(existing))
        return copy.deepcopy(existing)

    # --- What virt-api does --------------------------------------------------------------------------------

    def start(self, namespace: str, name: str) -> None:
        vm = self._requested(namespace, name)
        if self._instance_of(vm) is not None:
            raise statuses.conflict(_VM, name, "VM is already running")
        strategy = _strategy(vm)
        match strategy:
            case "Halted":
                _set_running(vm, True)
                self._starts(vm)
            case "Manual" | "RerunOnFailure":
                self._request(vm, {"action": "Start"})
                self._starts(vm)
            case _:
                raise statuses.conflict(_VM, name, f"{strategy} does not support manual start requests")

    def stop(self, namespace: str, name: str, options: Object) -> None:
        vm = self._requested(namespace, name)
        instance = self._instance_of(vm)
        strategy = _strategy(vm)
        if strategy in ("Always", "Once"):
            _set_running(vm, False)
        elif instance is None:
            raise statuses.conflict(_VM, name, "VM is not running")
        elif strategy == "Halted":
            grace = options.get("gracePeriod")
            if grace is None or grace >= instance["spec"].get("terminationGracePeriodSeconds", 30):
                why = "Halted only supports manual stop requests with a shorter graceperiod"
                raise statuses.conflict(_VM, name, why)
        else:
            vm["status"]["stateChangeRequests"] = [{"action": "Stop", "uid": instance["metadata"]["uid"]}]
        self._stops(vm)

    def restart(self, namespace: str, name: str, options: Object) -> None:
        grace = options.get("gracePeriodSeconds")
        if grace is not None and grace > 0:
            raise statuses.bad_request("For force restart, only gracePeriod=0 is supported for now")
        if grace is not None and grace < 0:
            raise statuses.bad_request("gracePeriod has to be greater or equal to 0")
        vm = self._requested(namespace, name)
        strategy = _strategy(vm)
        if strategy in ("Halted", "Once"):
            # KubeVirt's spelling.
            why = f"RunStategy {strategy} does not support manual restart requests"
            raise statuses.conflict(_VM, name, why)
        instance = self._instance_of(vm)
        if instance is None:
            raise statuses.conflict(_VM, name, "VM is not running: Halted")
        self._request(vm, {"action": "Stop", "uid": instance["metadata"]["uid"]}, {"action": "Start"})
        vm["status"]["printableStatus"] = "Stopping"
        self._touch(vm)
        self._later(lambda: self._restarted(vm))

    # --- What controllers do later -------------------------------------------------------------------------

    def _starts(self, vm: Object) -> None:
        vm.setdefault("status", {})["printableStatus"] = "Starting"
        self._touch(vm)
        self._later(lambda: self._started(vm))

    def _started(self, vm: Object) -> None:
        if not self._lives(vm) or _strategy(vm) == "Halted" or self._instance_of(vm) is not None:
            return
        self._run(vm)

    def _run(self, vm: Object) -> None:
        metadata = vm["metadata"]
        self._instances[metadata["namespace"], metadata["name"]] = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": self._metadata({"name": metadata["name"], "namespace": metadata["namespace"]}),
            "spec": copy.deepcopy(vm["spec"]["template"].get("spec", {})),
            "status": {"phase": "Running"},
        }
        vm["status"] = {"created": True, "ready": True, "printableStatus": "Running"}
        self._touch(vm)

    def _stops(self, vm: Object) -> None:
        vm.setdefault("status", {})["printableStatus"] = "Stopping"
        self._touch(vm)
        self._later(lambda: self._stopped(vm))

    def _stopped(self, vm: Object) -> None:
        if not self._lives(vm) or _strategy(vm) == "Always":
            return
        self._instances.pop(_key(vm), None)
        vm["status"] = {"printableStatus": "Stopped"}
        self._touch(vm)

    def _restarted(self, vm: Object) -> None:
        if self._lives(vm) and _strategy(vm) != "Halted":
            self._instances.pop(_key(vm), None)
            self._run(vm)

    def _finalized(self, vm: Object) -> None:
        if self._machines.get(_key(vm)) is not vm:
            return
        self._instances.pop(_key(vm), None)
        metadata = vm["metadata"]
        metadata["finalizers"] = [each for each in metadata["finalizers"] if each != _FINALIZER]
        self._touch(vm)
        if not metadata["finalizers"]:
            del self._machines[_key(vm)]

    # --- Bookkeeping ---------------------------------------------------------------------------------------

    def _found(self, namespace: str, name: str) -> Object:
        found = self._machines.get((namespace, name))
        if found is None:
            raise statuses.not_found(VMS, name)
        return found

    def _requested(self, namespace: str, name: str) -> Object:
        found = self._machines.get((namespace, name))
        if found is None:
            raise statuses.not_found(_VM, name)
        return found

    def _instance_of(self, vm: Object) -> Object | None:
        return self._instances.get(_key(vm))

    def _lives(self, vm: Object) -> bool:
        return self._machines.get(_key(vm)) is vm and "deletionTimestamp" not in vm["metadata"]

    def _request(self, vm: Object, *changes: Object) -> None:
        status = vm.setdefault("status", {})
        if status.get("stateChangeRequests"):
            raise statuses.internal("unable to complete request: stop/start already underway")
        status["stateChangeRequests"] = list(changes)

    def _replaced(self, existing: Object, wanted: Object) -> Object:
        """Apply the allowed changes. An object that is being deleted goes with its last finalizer."""
        if wanted["spec"] != existing["spec"]:
            existing["spec"] = copy.deepcopy(wanted["spec"])
            existing["metadata"]["generation"] += 1
        for name in ("labels", "annotations", "finalizers"):
            if name in wanted.get("metadata", {}):
                existing["metadata"][name] = copy.deepcopy(wanted["metadata"][name])
        self._touch(existing)
        if "deletionTimestamp" in existing["metadata"] and not existing["metadata"]["finalizers"]:
            self._machines.pop(_key(existing), None)
            self._instances.pop(_key(existing), None)
        return copy.deepcopy(existing)

    def _metadata(self, wanted: Object) -> Object:
        kept = {name: value for name, value in wanted.items() if name not in ("uid", "resourceVersion")}
        made = {**copy.deepcopy(kept), "uid": str(uuid4()), "creationTimestamp": _now()}
        return {**made, "resourceVersion": self._next_version()}

    def _touch(self, changed: Object) -> None:
        changed["metadata"]["resourceVersion"] = self._next_version()

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _list(self, version: str, kind: str, items: Any) -> Object:
        return {
            "apiVersion": version,
            "kind": f"{kind}List",
            "metadata": {"resourceVersion": str(self._version)},
            "items": [copy.deepcopy(item) for item in items],
        }


def _name(wanted: Object, kind: str) -> str:
    metadata = wanted.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not name:
        raise statuses.invalid(kind, "", "metadata.name", "Required value: name or generateName is required")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise statuses.invalid(kind, str(name), "metadata.name", f'Invalid value: "{name}": {_NAME_RULE}')
    return name


def _check_kind(wanted: Object) -> None:
    if wanted.get("apiVersion") != "kubevirt.io/v1":
        raise statuses.bad_request(
            f"the API version in the data ({wanted.get('apiVersion', '')}) does not match the expected API"
            " version (kubevirt.io/v1)"
        )
    if wanted.get("kind") != "VirtualMachine":
        raise statuses.bad_request(f"no kind {wanted.get('kind', '')!r} is registered for kubevirt.io/v1")


def _check_spec(wanted: Object) -> None:
    spec = wanted.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("template"), dict):
        raise statuses.denied("spec.template", "missing virtual machine template.")
    if "running" in spec and "runStrategy" in spec:
        why = "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use"
        raise statuses.denied("spec.running", f"{why} RunStrategy instead")
    if "running" not in spec and "runStrategy" not in spec:
        raise statuses.denied("spec.running", "RunStrategy must be specified")
    if "runStrategy" in spec and spec["runStrategy"] not in _STRATEGIES:
        raise statuses.denied("spec.runStrategy", f"Invalid RunStrategy ({spec['runStrategy']})")


def _check_preconditions(options: Object, existing: Object) -> None:
    wanted = options.get("preconditions") or {}
    metadata = existing["metadata"]
    if (uid := wanted.get("uid")) is not None and uid != metadata["uid"]:
        why = f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']})."
        raise statuses.conflict(
            VMS, metadata["name"], f"{why} The object might have been deleted and then recreated"
        )
    version = wanted.get("resourceVersion")
    if version is not None and version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in"
            f" record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise statuses.conflict(VMS, metadata["name"], why)


def _strategy(vm: Object) -> str:
    spec = vm["spec"]
    if "running" in spec:
        return "Always" if spec["running"] else "Halted"
    return str(spec["runStrategy"])


def _set_running(vm: Object, running: bool) -> None:
    if "running" in vm["spec"]:
        vm["spec"]["running"] = running
    else:
        vm["spec"]["runStrategy"] = "Always" if running else "Halted"
    vm["metadata"]["generation"] += 1


def _merged(existing: Any, changes: Any) -> Any:
    """Apply a merge patch (RFC 7396)."""
    if not isinstance(changes, dict):
        return changes
    merged = dict(existing) if isinstance(existing, dict) else {}
    for name, change in changes.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), change)
    return merged


def _success(gone: Object) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": gone["metadata"]["name"],
            "group": statuses.GROUP,
            "kind": VMS,
            "uid": gone["metadata"]["uid"],
        },
    }


def _key(vm: Object) -> tuple[str, str]:
    return vm["metadata"]["namespace"], vm["metadata"]["name"]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
