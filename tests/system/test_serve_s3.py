"""`batchline serve` with its files in a bucket of a real S3 server, and nothing of them on its own disk."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from batchline.files.objects import INPUTS, OUTPUTS, PARTS, Objects
from tests.support.buckets import BUCKET, s3_server
from tests.support.objects import keys
from tests.support.processes import batchline, simulated, write_requests
from tests.support.server_process import ended, served, submit

pytestmark = pytest.mark.skipif(
    not (Path(sys.executable).parent / "weed").exists(), reason="the S3 server has no wheel for this machine"
)


def test_upload_batch_and_download_go_through_the_bucket(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = f"s3://{BUCKET}/some prefix"
    path = write_requests(tmp_path / "in.jsonl", 300)
    with s3_server(tmp_path) as s3, simulated("--error-rate", "0.02") as upstream:
        # Of the machine, as for any program that speaks S3.
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        options = ("--upstream", upstream.url, "--objects", location)
        with served(database_url, tmp_path, *options) as server, server.client() as client:
            over = ended(client, submit(client, path))
            assert (over.status, over.error_file_id) == ("completed", None)
            assert over.output_file_id is not None
            assert client.files.content(over.input_file_id).content == path.read_bytes()
            output = client.files.content(over.output_file_id).content
            lines = [json.loads(line) for line in output.splitlines()]
            assert [line["custom_id"] for line in lines] == [f"q-{nth}" for nth in range(300)]
            half = len(output) // 2
            rest = client.files.with_raw_response.content(
                over.output_file_id, extra_headers={"range": f"bytes={half}-"}
            )
            assert (rest.status_code, rest.content) == (206, output[half:]), "a download can go on"

            upload = client.uploads.create(
                bytes=path.stat().st_size, filename="in.jsonl", mime_type="text/plain", purpose="batch"
            )
            content = path.read_bytes()
            parts = [
                client.uploads.parts.create(upload.id, data=piece).id
                for piece in (content[:10_000], content[10_000:])
            ]
            file = client.uploads.complete(upload.id, part_ids=parts).file
            assert file is not None
            assert client.files.content(file.id).content == content

            examined = batchline(
                *("doctor", "--database", database_url, "--data-dir", str(tmp_path / "data")),
                *("--objects", location),
            )
            assert examined.returncode == 0, examined.stdout + examined.stderr
            counts = [len(asyncio.run(keys(Objects.at(location), kind))) for kind in (INPUTS, OUTPUTS, PARTS)]
            assert counts == [2, 1, 0], "of the file in parts only the whole is left"
        assert s3.unfinished_uploads() == []
    kept = tmp_path / "data" / "objects"
    assert not kept.exists() or not any(kept.rglob("*")), "nothing is beside the bucket"
    assert "test-secret" not in "".join(server.complained + server.said)
