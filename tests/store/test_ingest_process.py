"""Files are read in processes of their own, which outlive whatever is wrong with one file."""

from pathlib import Path

import pytest

from batchline.files.ingest import StoredFile
from batchline.files.ingest_process import Ingesters
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.files.parsing import ReadingRules
from batchline.model.ids import new_id


async def test_a_child_reports_an_unreachable_object_store_and_keeps_running(tmp_path: Path) -> None:
    """Found by `python -m chaos --seed 7 --round 1`: it died with a traceback on the server's log."""
    folder = tmp_path / "objects"
    objects = Objects.at(folder)
    folder.rmdir()
    folder.touch()
    stored = StoredFile(new_id(), "default", "batch", "in.jsonl", 1, b"", "inputs/x", record_by=0.0)
    ingesters = Ingesters()
    try:
        pids = []
        for _ in range(2):
            with pytest.raises(ObjectStoreUnavailable, match="objects"):
                await ingesters.ingest("postgresql://nowhere", objects, stored, ReadingRules())
            pids.append(ingesters.process_ids)
        assert pids[0] == pids[1], "the same child was asked again"
    finally:
        await ingesters.close()
