"""A request that creates a batch is a span in its caller's trace; no other request is one."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.otlp_collector import Collector, collecting
from tests.support.server_process import Served, served

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n'
CALLER = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def server(database_url: str, tmp_path: Path, collector: Collector) -> Iterator[Served]:
    with served(
        database_url,
        tmp_path,
        *("--no-worker", "--upstream", "http://127.0.0.1:9"),
        BATCHLINE_TRACES_ENDPOINT=f"{collector.url}/v1/traces",
        OTEL_BSP_SCHEDULE_DELAY="50",
        NO_PROXY="127.0.0.1",
    ) as running:
        yield running


def create(client: openai.OpenAI, traceparent: str, key: str = "") -> str:
    file = client.files.create(file=("lines.jsonl", LINE), purpose="batch")
    headers = {"traceparent": traceparent} | ({"idempotency-key": key} if key else {})
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_headers=headers,
    ).id


def test_a_submission_is_a_span_of_its_caller(server: Served, collector: Collector) -> None:
    with server.client() as client:
        first = create(client, f"00-{'-'.join(CALLER)}-01")
        second = create(client, "00-not-valid")
        create(client, f"00-{'-'.join(CALLER)}-00")
        client.batches.retrieve(first)
        client.batches.list()
        with pytest.raises(openai.NotFoundError):
            client.batches.create(
                input_file_id="file-0", endpoint="/v1/chat/completions", completion_window="24h"
            )
        response = client.responses.create(model="m", input="hello", background=True)
    created, alone, background = collector.wait_for("POST", 3)
    assert created.kind == "server"
    assert (created.trace_id, created.parent_id) == CALLER
    assert created.name == "POST /v1/batches"
    assert created.attributes == {
        "batchline.batch.id": first,
        "http.request.method": "POST",
        "http.route": "/v1/batches",
        "http.response.status_code": 200,
    }
    assert (alone.attributes["batchline.batch.id"], alone.parent_id) == (second, "")
    assert alone.trace_id != CALLER[0]
    assert background.name == "POST /v1/responses"
    batch_id = background.attributes["batchline.batch.id"]
    assert str(batch_id).removeprefix("batch_") == response.id.removeprefix("resp_")
    # Neither polls, refusals, nor a submission whose caller has said not to sample it.
    assert len(collector.spans) == 3


def test_a_repeated_request_creates_no_second_span(server: Served, collector: Collector) -> None:
    with server.client() as client:
        file = client.files.create(file=("lines.jsonl", LINE), purpose="batch")
        found = {
            client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                extra_headers={"idempotency-key": "once"},
            ).id
            for _ in range(3)
        }
        create(client, "", "last")
    assert len(found) == 1
    assert len(collector.wait_for("POST", 2)) == 2
