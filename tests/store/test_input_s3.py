"""Inputs in a bucket of a real S3 server."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.rendering import RowTemplate
from batchline.files.inputs.spool import Spool
from batchline.files.objects import Objects
from tests.support.buckets import BUCKET, S3, SECRET, s3_server
from tests.support.input_files import ROWS, encoded, inputs_at
from tests.support.objects import blocks

pytestmark = pytest.mark.skipif(
    not (Path(sys.executable).parent / "weed").exists(), reason="the S3 server has no wheel for this machine"
)
HOW = RowTemplate(model="m")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


async def test_objects_patterns_and_folders_of_a_bucket(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    objects = Objects.at(f"s3://{BUCKET}")
    for key in ("in/b.csv", "in/a.parquet", "in/c d.csv.gz", "other.csv"):
        await objects.write(key, blocks(encoded(key.partition(".")[2])))
    with Spool(lambda: tmp_path / "spool") as spool:

        def names(given: str) -> list[str]:
            return [file.name for file in inputs_at(given, template=HOW, spool=spool).files]

        one = inputs_at(f"s3://{BUCKET}/in/a.parquet", template=HOW, spool=spool)
        assert [row for _, row in one.rows()] == ROWS
        assert names(f"s3://{BUCKET}/in/c%20d.csv.gz") == [f"s3://{BUCKET}/in/c%20d.csv.gz"]
        assert names(f"s3://{BUCKET}/in/*.csv") == [f"s3://{BUCKET}/in/b.csv"]
        assert names(f"s3://{BUCKET}/in/") == [
            f"s3://{BUCKET}/in/{name}" for name in ("a.parquet", "b.csv", "c%20d.csv.gz")
        ]
        with pytest.raises(InputRefused, match=f"s3://{BUCKET}/in/x.csv: there is no such object"):
            names(f"s3://{BUCKET}/in/x.csv")
        with pytest.raises(InputRefused, match="no object matches it"):
            names(f"s3://{BUCKET}/in/*.tsv")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"wrong-{SECRET}")
        with pytest.raises(InputRefused, match="cannot be read") as refused:
            names(f"s3://{BUCKET}/in/b.csv")
        assert SECRET not in str(refused.value)
