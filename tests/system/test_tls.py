"""Connections to the database, upstreams and the bucket are encrypted and checked (docs/how-to/tls.md)."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.support.buckets import BUCKET, s3_server
from tests.support.gated_upstream import gated_upstream
from tests.support.processes import PYTHON, batchline, simulated, write_requests
from tests.support.server_process import ended, served, submit
from tests.support.tcp_postgres import PASSWORD, TcpPostgres, tcp_postgres

WEED = Path(sys.executable).parent / "weed"


def make_certificate(folder: Path, name: str, subject: str, *more: str) -> Path:
    """A self-signed certificate, or one that `more` says who signs."""
    path = folder / f"{name}.crt"
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    files = ("-keyout", str(path.with_suffix(".key")), "-out", str(path))
    command = ("openssl", "req", *kind, *files, "-subj", f"/CN={subject}", *more)
    subprocess.run(command, check=True, capture_output=True)
    return path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Of two authorities, and of a server on this machine that the first has signed."""

    authority: Path
    another: Path
    server: Path


@dataclass(frozen=True, slots=True)
class Secured:
    postgres: TcpPostgres
    authority: Path
    another: Path

    def url(self, mode: str, authority: Path | None = None) -> str:
        return f"{self.postgres.url}?sslmode={mode}&sslrootcert={authority or self.authority}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    authority, another = (make_certificate(folder, name, name) for name in ("authority", "another"))
    signed = ("-CA", str(authority), "-CAkey", str(authority.with_suffix(".key")))
    extensions = ("subjectAltName=IP:127.0.0.1", "basicConstraints=critical,CA:FALSE")
    more = [word for extension in extensions for word in ("-addext", extension)]
    return Certificates(authority, another, make_certificate(folder, "server", "server", *signed, *more))


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[Secured]:
    """A PostgreSQL that refuses connections without TLS."""
    files = {
        path.name: path.read_bytes()
        for path in (certificates.server, certificates.server.with_suffix(".key"))
    }
    # Relative to the data folder.
    settings = {"ssl": "on", "ssl_cert_file": "../server.crt", "ssl_key_file": "../server.key"}
    with tcp_postgres(settings, kind="hostssl", files=files) as postgres:
        yield Secured(postgres, certificates.authority, certificates.another)


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


def test_a_batch_runs_and_every_connection_is_encrypted(secured: Secured, tmp_path: Path) -> None:
    url = secured.url("verify-full")
    location = ("--database", url, "--data-dir", str(tmp_path / "data"))
    assert batchline("migrate", "up", *location).returncode == 0
    with (
        simulated() as upstream,
        served(url, tmp_path, "--upstream", upstream.url) as server,
        server.client() as client,
    ):
        over = ended(client, submit(client, write_requests(tmp_path / "in.jsonl", 50)))
        assert over.status == "completed"
        with psycopg.connect(secured.postgres.server.url) as connection:
            found = connection.execute(
                "SELECT application_name, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
                " WHERE application_name LIKE 'batchline %'"
            ).fetchall()
    assert {"batchline claim", "batchline settle", "batchline listener"} <= {name for name, _ in found}
    assert all(encrypted for _, encrypted in found)


@pytest.mark.parametrize(
    ("mode", "known", "said"),
    [("verify-full", False, "certificate verify failed"), ("disable", True, "no encryption")],
)
def test_a_wrong_certificate_and_a_plain_connection_are_refused(
    secured: Secured, tmp_path: Path, mode: str, known: bool, said: str
) -> None:
    url = secured.url(mode, None if known else secured.another)
    refused = batchline("migrate", "status", "--database", url, "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 2
    assert said in refused.stderr
    assert PASSWORD not in refused.stderr


def test_an_upstream_needs_a_certificate_of_a_known_authority(
    certificates: Certificates, database_url: str, tmp_path: Path
) -> None:
    lines = write_requests(tmp_path / "in.jsonl", 3)
    with gated_upstream(certificates.server) as upstream:
        assert upstream.url.startswith("https://")
        command = ("run", str(lines), "--upstream", upstream.url, "--database", database_url)
        location = ("--data-dir", str(tmp_path / "data"))
        refused = batchline(*command, *location, SSL_CERT_FILE=str(certificates.another))
        assert refused.returncode == 2
        assert "invalid peer certificate" in refused.stderr
        assert upstream.keys.total() == 0
        done = batchline(*command, *location, SSL_CERT_FILE=str(certificates.authority))
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not WEED.exists(), reason="the S3 server has no wheel for this machine")
def test_a_bucket_needs_a_certificate_of_a_known_authority(
    certificates: Certificates, tmp_path: Path
) -> None:
    code = f"import asyncio; from batchline.files.objects import Objects; print(asyncio.run(Objects.at('s3://{BUCKET}/files').exists('a')))"
    with s3_server(tmp_path, certificates.server) as s3:
        environment = {name: value for name, value in s3.environment().items() if name != "AWS_ALLOW_HTTP"}

        def requested(authority: Path) -> subprocess.CompletedProcess[str]:
            more = {**environment, "SSL_CERT_FILE": str(authority)}
            return subprocess.run(
                [PYTHON, "-c", code], capture_output=True, text=True, env={**os.environ, **more}
            )

        refused = requested(certificates.another)
        assert refused.returncode == 1
        assert "ObjectStoreUnavailable" in refused.stderr
        answered = requested(certificates.authority)
        assert (answered.returncode, answered.stdout) == (0, "False\n"), answered.stderr
