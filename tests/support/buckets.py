"""A real S3 server for tests: SeaweedFS, from its wheel, as a process of its own with one bucket.

The wheel is built by a packager and not by the project itself, which is good enough for a test's server.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.ports import free_ports
from tests.support.waiting import wait_for

BUCKET = "batchline"
REGION = "us-east-1"
SECRET = "test-secret"
# What each key may do.
KEYS = {"writer": ["Read", "Write", "List"], "reader": ["Read", "List"]}


@dataclass(frozen=True, slots=True)
class S3:
    url: str
    filer: str
    process: subprocess.Popen[bytes]

    def environment(self, key: str = "writer", secret: str = SECRET) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def unfinished_uploads(self) -> list[str]:
        """What the server keeps of uploads in parts that were neither completed nor aborted."""
        return self._names(f"/buckets/{BUCKET}/.uploads/")

    def _names(self, path: str) -> list[str]:
        request = urllib.request.Request(self.filer + path, headers={"accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return []
            raise
        return [entry["FullPath"].rpartition("/")[2] for entry in found["Entries"] or []]


@contextmanager
def s3_server(folder: Path, certificate: Path | None = None) -> Iterator[S3]:
    """`certificate`: it speaks TLS, on one more port. The key is beside it."""
    identities = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "actions": actions}
        for name, actions in KEYS.items()
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    *free, secure = free_ports(9)
    ports = dict(zip(("master", "volume", "filer", "s3"), free[:4], strict=True))
    grpc = dict(zip(ports, free[4:], strict=True))
    tls = (
        []
        if certificate is None
        else [
            f"-s3.port.https={secure}",
            f"-s3.cert.file={certificate}",
            f"-s3.key.file={certificate.with_suffix('.key')}",
        ]
    )
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "weed"),
            "-logtostderr=true",
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=20",
            "-s3",
            f"-s3.config={config}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *(f"-{name}.port={port}" for name, port in ports.items()),
            *(f"-{name}.port.grpc={port}" for name, port in grpc.items()),
            *tls,
        ],
        stdout=log,
        stderr=log,
    )
    server = S3(f"http://127.0.0.1:{ports['s3']}", f"http://127.0.0.1:{ports['filer']}", process)
    try:
        wait_for("the S3 server to answer", lambda: process.poll() is not None or _answers(server.url))
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        # A bucket is a folder of the file system below.
        wait_for("a bucket", lambda: _answers(f"{server.filer}/buckets/{BUCKET}/", "POST"))
        yield server if certificate is None else replace(server, url=f"https://127.0.0.1:{secure}")
    finally:
        # A graceful end takes many seconds, and nothing here is worth keeping.
        process.kill()
        process.wait()
        log.close()


def _answers(url: str, method: str = "GET") -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True
