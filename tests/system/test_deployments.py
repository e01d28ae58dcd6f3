"""What compose, the systemd units and the Helm chart start, started here: a PostgreSQL that asks for a
password, an S3 server, the migration, the server and two workers. They run a batch of the official client.

Containers, systemd and Kubernetes themselves are not part of this. deploy/README.md says what is left open.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.support import deployment
from tests.support.deployment import DEPLOY, Machine, Program
from tests.support.helm import rendered
from tests.support.openai_client import openai_client
from tests.support.ports import free_ports
from tests.support.processes import simulated, write_requests
from tests.support.server_process import ended, submit
from tests.support.tcp_postgres import DATABASE, PASSWORD, USER, TcpPostgres, tcp_postgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(
    not (Path(sys.executable).parent / "weed").exists(), reason="the S3 server has no wheel for this machine"
)

S3_SECRET = "the secret of the store"
VARIABLES = {"POSTGRES_PASSWORD": PASSWORD, "S3_SECRET_KEY": S3_SECRET}
COMPOSE = deployment.compose("compose.yaml", VARIABLES)["services"]
CONFIG = "/etc/batchline/batchline.toml"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The programs of one way to deploy, as its files have them, and the addresses and folders in them."""

    migrate: Program
    server: Program
    worker: Program
    postgres: str
    objects: str
    state: str
    config: str


def by_compose() -> Deployment:
    parts = {name: deployment.compose_program(COMPOSE[name]) for name in ("migrate", "server", "worker")}
    config = (DEPLOY / "compose" / "batchline.toml").read_text()
    return Deployment(
        **parts, postgres="postgres:5432", objects="objects:8333", state="/var/lib/batchline", config=config
    )


def by_systemd() -> Deployment:
    example = (DEPLOY / "systemd" / "batchline.env.example").read_text()
    given = {"PGPASSWORD": PASSWORD, "AWS_ACCESS_KEY_ID": "batchline", "AWS_SECRET_ACCESS_KEY": S3_SECRET}
    lines = (line.lstrip("#").split("=", 1) for line in example.splitlines() if "=" in line)
    variables = {name: given.get(name, value) for name, value in lines if name != "MODELS_API_KEY"}
    # A store of one's own, as docs/how-to/s3.md has it.
    variables |= {"AWS_ENDPOINT_URL": "http://objects:8333", "AWS_ALLOW_HTTP": "true"}
    config = (DEPLOY / "compose" / "batchline.toml").read_text()
    return Deployment(
        deployment.unit_program("batchline-migrate.service", variables),
        deployment.unit_program("batchline-server.service", variables),
        deployment.unit_program("batchline-worker@.service", variables, copies=2),
        postgres="db.example",
        objects="objects:8333",
        state="/var/lib/batchline",
        config=config,
    )


def by_helm() -> Deployment:
    values = {
        "database": {"existingSecret": "database"},
        "objects": {
            "url": "s3://batchline/files",
            "existingSecret": "store",
            "env": {
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": "http://objects:8333",
                "AWS_ALLOW_HTTP": "true",
            },
        },
    }
    secrets = {
        "database": {"url": f"postgresql://{USER}:{quote(PASSWORD)}@db:5432/{DATABASE}"},
        "store": {"AWS_ACCESS_KEY_ID": "batchline", "AWS_SECRET_ACCESS_KEY": S3_SECRET},
    }
    manifests = {
        manifest["metadata"]["labels"].get("app.kubernetes.io/component", manifest["kind"]): manifest
        for manifest in rendered(DEPLOY / "helm" / "batchline", values)
        if manifest["kind"] in ("Job", "Deployment", "ConfigMap")
    }
    migrate, server, worker = (
        deployment.pod_program(manifests[part], secrets)[0] for part in ("migration", "server", "worker")
    )
    return Deployment(
        migrate,
        # One of them: all would listen on one port here.
        Program(server.arguments, server.environment),
        worker,
        postgres="db:5432",
        objects="objects:8333",
        state="/var/lib/batchline",
        config=manifests["ConfigMap"]["data"]["batchline.toml"],
    )


@pytest.fixture(scope="module")
def postgres() -> Iterator[TcpPostgres]:
    """With the settings of the compose file."""
    words = COMPOSE["postgres"]["command"].split()
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    assert settings["max_connections"] == "350"
    with tcp_postgres(settings) as server:
        yield server


@pytest.fixture(scope="module")
def objects() -> Iterator[str]:
    """The address of the compose file's S3 server, on other ports and with other folders."""
    service = COMPOSE["objects"]
    ports = free_ports(8)
    names = [f"{part}.port{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("", ".grpc")]
    with tempfile.TemporaryDirectory(prefix="batchline-weed-") as folder:
        moved = [word.replace("/data", folder).replace("0.0.0.0", "127.0.0.1") for word in service["command"]]
        others = [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
        off = ["-admin.port=0", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(
                [Path(sys.executable).parent / "weed", *moved, *others, *off],
                env=service["environment"],
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        address = f"127.0.0.1:{ports[0]}"
        try:
            # The address of its health check.
            (checked,) = [word for word in service["healthcheck"]["test"] if word.startswith("http")]
            url = checked.replace("127.0.0.1:8333", address)
            wait_for("the S3 server", lambda: process.poll() is not None or answers(url))
            assert process.poll() is None, Path(folder, "log").read_text()[-2000:]
            yield address
        finally:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("how", [by_compose, by_systemd, by_helm])
def test_the_programs_of_a_deployment_run_a_batch(
    how: Callable[[], Deployment], postgres: TcpPostgres, objects: str, tmp_path: Path
) -> None:
    plan = how()
    with (
        # Not pytest's, which only root may enter.
        tempfile.TemporaryDirectory(prefix="batchline-machine-") as folder,
        deployment.a_machine(Path(folder)) as machine,
        simulated("--error-rate", "0.02") as upstream,
    ):
        programs = located(plan, machine, postgres.port, objects, upstream.url)
        server_port = programs["server"].environment["BATCHLINE_SERVER_PORT"]
        check = health_check(server_port)

        migrated = machine.run(programs["migrate"])
        assert migrated.returncode == 0, migrated.stdout + migrated.stderr
        created = machine.run(programs["server"], "keys", "create", how.__name__, "--role", "admin", "--json")
        assert created.returncode == 0, created.stderr
        key = json.loads(created.stdout)["key"]
        assert subprocess.run(check, capture_output=True).returncode != 0, "there is no server yet"
        (server,) = machine.start(programs["server"])
        workers = machine.start(programs["worker"])
        assert len(workers) == 2
        url = f"http://127.0.0.1:{server_port}"
        ready = f"{url}/readyz"
        wait_for("a ready server", lambda: server.process.poll() is not None or answers(ready))
        assert server.process.poll() is None, server.said
        assert subprocess.run(check, capture_output=True).returncode == 0

        with openai_client(key, url) as client:
            path = write_requests(tmp_path / "in.jsonl", 500)
            over = ended(client, submit(client, path))
            assert (over.status, over.error_file_id) == ("completed", None)
            assert over.output_file_id is not None
            lines = client.files.content(over.output_file_id).text.splitlines()
            assert [json.loads(line)["custom_id"] for line in lines] == [f"q-{nth}" for nth in range(500)]
        examined = machine.run(programs["server"], "doctor")
        assert examined.returncode == 0, examined.stdout + examined.stderr

        assert machine.stop() == [0, 0, 0], [each.said for each in machine.started]
        said = "".join(each.said for each in machine.started)
        assert "admin key" not in said, "a key existed before the server started"
        for secret in (PASSWORD, S3_SECRET, key):
            assert secret not in said
        assert not list(machine.state.rglob("objects/*")), "files are in the bucket"


def located(
    plan: Deployment, machine: Machine, port: int, objects: str, upstream: str
) -> Mapping[str, Program]:
    """The programs with the addresses and folders of this machine."""
    settings = tomllib.loads(plan.config)
    (of_config,) = settings["upstreams"]
    config = machine.folder / "batchline.toml"
    config.write_text(plan.config.replace(of_config["base_url"], f"{upstream}/v1"))
    (server_port,) = free_ports(1)
    locations = {
        plan.postgres: f"127.0.0.1:{port}",
        plan.objects: objects,
        plan.state: str(machine.state),
        CONFIG: str(config),
    }
    programs = {"migrate": plan.migrate, "server": plan.server, "worker": plan.worker}
    for text in locations:
        assert any(text in value for each in programs.values() for value in each.environment.values()), text
    listening = {"BATCHLINE_SERVER_HOST": "127.0.0.1", "BATCHLINE_SERVER_PORT": str(server_port)}
    # Any port, because all workers are on one machine here.
    locations |= {"0.0.0.0": "127.0.0.1", "9464": "0"}
    moved = {name: program.moved(locations) for name, program in programs.items()}
    server = moved["server"]
    return {
        **moved,
        "server": Program(
            server.arguments, {**server.environment, **listening}, no_new_code=server.no_new_code
        ),
    }


def health_check(port: str) -> list[str]:
    """The image's own, with this port."""
    (rest,) = [each.rest for each in deployment.stages()[-1] if each.name == "HEALTHCHECK"]
    command = yaml.safe_load(rest.split("CMD ", 1)[1])
    assert command[:2] == ["python", "-c"]
    return ["env", f"BATCHLINE_SERVER_PORT={port}", sys.executable, *command[1:]]
