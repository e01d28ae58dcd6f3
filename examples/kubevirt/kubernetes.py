"""The simulated Kubernetes API: routes, injected faults and statistics.

A request passes, in this order: the token, the rate limit, the faults, and its latency. Like the real API, it
has no idempotency keys: a request that is sent twice is executed twice, or refused as already done.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from batchline.simulate.faults import FaultDice, InjectedFault, TokenBucket
from batchline.simulate.http import Connection, ReceivedRequest
from examples.kubevirt import statuses
from examples.kubevirt.cluster import NAMESPACES, VMIS, VMS, Cluster, Object
from examples.kubevirt.settings import ClusterSettings
from examples.kubevirt.statuses import StatusError

_MERGE_PATCH = "application/merge-patch+json"
_decode = msgspec.json.Decoder().decode


class Executed(NamedTuple):
    method: str
    path: str
    status: int
    key: str | None


class Answer(NamedTuple):
    status: int
    body: Object | None


_Act: TypeAlias = Callable[[], Answer]


class KubernetesRoutes:
    def __init__(self, settings: ClusterSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._dice = FaultDice(settings)
        # A separate sequence, so that jitter does not change which requests fail.
        self._jitter = Random(f"jitter {settings.seed}").random
        self._bucket = TokenBucket(settings.rate_limit, time.monotonic) if settings.rate_limit else None
        self._waiting: deque[tuple[Connection, ReceivedRequest, bool]] = deque()
        self._in_flight = self._peak = 0
        self._reset()

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        match (request.method, request.path):
            case (b"GET", b"/stats"):
                connection.answer(200, msgspec.json.encode(self._report()))
            case (b"GET", b"/executions") if self._settings.record:
                connection.stream(b"application/x-ndjson", self._record_lines())
            case (b"POST", b"/reset"):
                self._reset()
                connection.answer(200, msgspec.json.encode(self._report()))
            case _:
                self._receive(connection, request)

    # --- Admission -----------------------------------------------------------------------------------------

    def _receive(self, connection: Connection, request: ReceivedRequest) -> None:
        self._requests += 1
        try:
            self._check_token(request)
            self._check_rate()
            self._admit(connection, request)
        except StatusError as error:
            self._refuse(connection, error)

    def _check_token(self, request: ReceivedRequest) -> None:
        token = self._settings.token
        if token is not None and request.authorization != b"Bearer " + token.encode():
            raise statuses.unauthorized()

    def _check_rate(self) -> None:
        wait_s = self._bucket.wait_s() if self._bucket is not None else 0.0
        if wait_s:
            raise statuses.too_many(math.ceil(wait_s))

    def _admit(self, connection: Connection, request: ReceivedRequest) -> None:
        match self._dice.throw():
            case InjectedFault.DROP_BEFORE:
                connection.hang_up()
            case InjectedFault.HANG:
                connection.hang()
            case InjectedFault.ERROR_500:
                raise statuses.internal("injected fault: the request was not executed")
            case InjectedFault.ERROR_503:
                raise statuses.unavailable()
            case fault:
                self._queue(connection, request, fault is InjectedFault.DROP_AFTER)

    def _queue(self, connection: Connection, request: ReceivedRequest, dropped: bool) -> None:
        if self._settings.concurrency and self._in_flight >= self._settings.concurrency:
            self._waiting.append((connection, request, dropped))
        else:
            self._begin(connection, request, dropped)

    def _begin(self, connection: Connection, request: ReceivedRequest, dropped: bool) -> None:
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)
        delay_ms = self._settings.latency_ms + self._settings.jitter_ms * self._jitter()
        if delay_ms:
            self._loop.call_later(delay_ms / 1000, self._execute, connection, request, dropped)
        else:
            self._execute(connection, request, dropped)

    def _execute(self, connection: Connection, request: ReceivedRequest, dropped: bool) -> None:
        self._in_flight -= 1
        if self._waiting:
            self._begin(*self._waiting.popleft())
        try:
            status, body = self._act(request)()
            content, headers = b"" if body is None else msgspec.json.encode(body), b""
        except StatusError as error:
            status, content, headers = error.code, error.body, error.headers
        self._note(request, status)
        if dropped:
            connection.hang_up()
        else:
            self._answer(connection, status, b"" if request.method == b"HEAD" else content, headers)

    # --- Routes --------------------------------------------------------------------------------------------

    def _act(self, request: ReceivedRequest) -> _Act:
        """Find the act for the request. Raises StatusError."""
        segments = [unquote(part.decode("latin-1")) for part in request.path.strip(b"/").split(b"/")]
        method, cluster = request.method.decode("latin-1"), self._cluster
        match segments:
            case ["version"]:
                return _only(
                    method, GET=lambda: Answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
                )
            case ["api", "v1", "namespaces"]:
                return _only(
                    method,
                    GET=lambda: Answer(200, cluster.namespaces()),
                    POST=lambda: Answer(201, cluster.create_namespace(_body(request))),
                )
            case ["api", "v1", "namespaces", name]:
                return _only(method, GET=lambda: Answer(200, cluster.namespace(name)))
            case ["apis", "kubevirt.io", "v1"]:
                return _only(method, GET=lambda: Answer(200, _resources()))
            case ["apis", "kubevirt.io", "v1", "virtualmachines"]:
                return _only(method, GET=lambda: Answer(200, cluster.machines()))
            case ["apis", "kubevirt.io", "v1", "namespaces", namespace, "virtualmachines"]:
                return _only(
                    method,
                    GET=lambda: Answer(200, cluster.machines(namespace)),
                    POST=lambda: Answer(201, cluster.create(namespace, _body(request))),
                )
            case ["apis", "kubevirt.io", "v1", "namespaces", namespace, "virtualmachines", name]:
                return _only(
                    method,
                    GET=lambda: Answer(200, cluster.machine(namespace, name)),
                    PUT=lambda: Answer(200, cluster.update(namespace, name, _body(request))),
                    PATCH=lambda: Answer(200, cluster.patch(namespace, name, _patch(request))),
                    DELETE=lambda: Answer(200, cluster.delete(namespace, name, _options(request))),
                )
            case ["apis", "kubevirt.io", "v1", "virtualmachineinstances"]:
                return _only(method, GET=lambda: Answer(200, cluster.instances()))
            case ["apis", "kubevirt.io", "v1", "namespaces", namespace, "virtualmachineinstances"]:
                return _only(method, GET=lambda: Answer(200, cluster.instances(namespace)))
            case ["apis", "kubevirt.io", "v1", "namespaces", namespace, "virtualmachineinstances", name]:
                return _only(method, GET=lambda: Answer(200, cluster.instance(namespace, name)))
            case [
                "apis",
                "subresources.kubevirt.io",
                "v1",
                "namespaces",
                namespace,
                "virtualmachines",
                name,
                "start" | "stop" | "restart" as action,
            ]:
                return _only(method, PUT=lambda: self._power(action, namespace, name, _options(request)))
            case _:
                raise statuses.unknown_path()

    def _power(self, action: str, namespace: str, name: str, options: Object) -> Answer:
        match action:
            case "start":
                self._cluster.start(namespace, name)
            case "stop":
                self._cluster.stop(namespace, name, options)
            case _:
                self._cluster.restart(namespace, name, options)
        # virt-api accepts with an empty body.
        return Answer(202, None)

    # --- What it did ---------------------------------------------------------------------------------------

    def _reset(self) -> None:
        """Replace the cluster. Controllers of the old one continue to act on the old one."""
        self._cluster = Cluster(self._settings.namespaces, self._later)
        self._requests = self._executed = self._peak = 0
        self._by_status: dict[int, int] = {}
        self._by_verb: dict[str, int] = {}
        self._records: list[Executed] = []

    def _later(self, act: Callable[[], None]) -> None:
        self._loop.call_later(self._settings.controller_ms / 1000, act)

    def _note(self, request: ReceivedRequest, status: int) -> None:
        self._executed += 1
        method = request.method.decode("latin-1")
        if status < 400:
            last = request.path.rsplit(b"/", 1)[-1].decode("latin-1")
            verb = last if last in ("start", "stop", "restart") else method.lower()
            self._by_verb[verb] = self._by_verb.get(verb, 0) + 1
        if self._settings.record:
            key = None if request.key is None else request.key.decode("latin-1")
            self._records.append(Executed(method, request.path.decode("latin-1"), status, key))

    def _record_lines(self) -> Iterator[bytes]:
        for record in list(self._records):
            yield msgspec.json.encode(record._asdict()) + b"\n"

    def _report(self) -> dict[str, Any]:
        """`executed` counts requests to the cluster, `by_verb` its acts, `by_status` its answers."""
        machines = self._cluster.machines()["items"]
        return {
            "requests": self._requests,
            "executed": self._executed,
            "by_verb": self._by_verb,
            "by_status": self._by_status,
            "in_flight": self._in_flight,
            "peak_in_flight": self._peak,
            "objects": {
                NAMESPACES: len(self._cluster.namespaces()["items"]),
                VMS: len(machines),
                VMIS: len(self._cluster.instances()["items"]),
                "terminating": sum("deletionTimestamp" in vm["metadata"] for vm in machines),
            },
        }

    def _refuse(self, connection: Connection, error: StatusError) -> None:
        self._answer(connection, error.code, error.body, error.headers)

    def _answer(self, connection: Connection, status: int, body: bytes, headers: bytes) -> None:
        if not connection.gone:
            self._by_status[status] = self._by_status.get(status, 0) + 1
            connection.answer(status, body, headers)


def _only(method: str, **acts: _Act) -> _Act:
    act = acts.get("GET" if method == "HEAD" else method)
    if act is None:
        raise statuses.wrong_method()
    return act


def _body(request: ReceivedRequest) -> Object:
    try:
        read = _decode(request.body)
    except msgspec.DecodeError as error:
        raise statuses.bad_request(f"the object provided is unrecognized: {error}") from None
    if not isinstance(read, dict):
        raise statuses.bad_request("the object provided is unrecognized (must be of type VirtualMachine)")
    return read


def _options(request: ReceivedRequest) -> Object:
    return _body(request) if request.body.strip() else {}


def _patch(request: ReceivedRequest) -> Object:
    kind = b"" if request.content_type is None else request.content_type.partition(b";")[0].strip()
    if kind != _MERGE_PATCH.encode():
        raise statuses.wrong_type(_MERGE_PATCH)
    return _body(request)


def _resources() -> Object:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "kubevirt.io/v1",
        "resources": [
            {"name": VMS, "singularName": "virtualmachine", "namespaced": True, "kind": "VirtualMachine"},
            {
                "name": VMIS,
                "singularName": "virtualmachineinstance",
                "namespaced": True,
                "kind": "VirtualMachineInstance",
            },
        ],
    }
