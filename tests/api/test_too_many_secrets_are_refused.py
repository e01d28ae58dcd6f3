"""The API refuses an item with too many secrets, and keeps answering meanwhile."""

import json
from dataclasses import replace
from pathlib import Path

from batchline.governance.registry import Registry
from batchline.secrets.masking import (
    MAX_SECRET_BYTES,
    MAX_SECRETS,
)
from tests.support.event_loops import slowest_callback
from tests.support.many_secrets import LABELS, VM_CREATE, machine, plain_labels, secret_labels
from tests.support.operations_client import SETTINGS
from tests.support.serving import serving


def test_the_api_refuses_too_many_secrets_and_stays_quick(database_url: str, tmp_path: Path) -> None:
    registry = Registry([replace(VM_CREATE, approval="never")])
    with serving(database_url, tmp_path, SETTINGS, registry) as server, server.http(server.key()) as http:
        with slowest_callback() as slowest:
            answers = [
                http.post("/api/v1/operations/vm_create/batches", json={"items": [machine(**labels)]})
                for labels in (
                    secret_labels(LABELS),
                    {"password": "x" * (MAX_SECRET_BYTES + 1)},
                    {**secret_labels(MAX_SECRETS), **plain_labels(LABELS)},
                )
            ]
            # A callback is timed when it ends: the last one has, when another one is answered.
            assert http.get("/healthz").status_code == 200
        slowest.check()
        assert [answer.status_code for answer in answers] == [400, 400, 202]
        error = answers[0].json()["error"]
        assert error["message"] == "Invalid items: items[0]: more than 1,000 fields with secret names"
        assert error["param"] == "items[0]"
        assert json.loads(answers[2].text)["status"] == "IN_PROGRESS"
