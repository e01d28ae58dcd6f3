"""POST /v1/batches/{id}/retry, with the official client."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch as OpenAIBatch

from batchline.batches.finalize import finalize_one
from batchline.model import ids
from batchline.store import batches, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.api.test_batches import act, create, envelope, is_valid, tenant_of, upload, uuid_of
from tests.support.builders import a_worker, completed, failed, sql, take
from tests.support.scenes import database
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client(ids.new_id().hex) as client:
        yield client


def retry(client: openai.OpenAI, batch: OpenAIBatch, body: object = None) -> OpenAIBatch:
    return client.post(f"/batches/{batch.id}/retry", body=body, cast_to=OpenAIBatch)


def run_some(
    server: Server, batch: OpenAIBatch, *, fail: bool, limit: int = 1000, cancel: bool = False
) -> None:
    """Run lines of the batch, of which every second one fails, or none, and end it."""

    async def work(db: Session) -> None:
        worker = a_worker()
        items = await take(db, worker, limit, Scope(batch_id=uuid_of(batch)))
        verdicts = [failed(item) if fail and item.line_no % 2 == 0 else completed(item) for item in items]
        await spans.settle(db, worker.id, verdicts)
        if cancel:
            await batches.close(db, uuid_of(batch), "cancel")
        assert await finalize_one(db, server.objects, worker, uuid_of(batch)) is not None

    act(server, work)


def test_failed_lines_run_again_and_both_outputs_can_be_downloaded(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, upload(server, client, model=5))
    run_some(server, batch, fail=True)
    first = is_valid(client.batches.retrieve(batch.id))
    again = is_valid(retry(client, batch))
    assert (again.status, again.completed_at, again.error_file_id) == ("in_progress", None, None)
    assert again.output_file_id not in (None, first.output_file_id), "the file that it will have"
    assert again.request_counts is not None
    assert (again.request_counts.completed, again.request_counts.failed) == (3, 0)
    assert again.expires_at is not None
    assert first.expires_at is not None
    assert again.expires_at >= first.expires_at
    run_some(server, batch, fail=False)
    second = is_valid(client.batches.retrieve(batch.id))
    assert (second.status, second.output_file_id, second.error_file_id) == (
        "completed",
        again.output_file_id,
        None,
    )
    sizes = {
        file_id: client.files.content(file_id).text.count("\n")
        for file_id in (first.output_file_id, first.error_file_id, second.output_file_id)
        if file_id is not None
    }
    assert list(sizes.values()) == [3, 2, 5]


def test_each_end_is_reported_under_an_id_of_its_own(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, upload(server, client, model=2))
    run_some(server, batch, fail=True)
    retry(client, batch)
    run_some(server, batch, fail=False)
    query = "SELECT DISTINCT id FROM batchline.outbox WHERE batch_id = %(id)s"
    assert len(act(server, lambda db: sql(db, query, id=uuid_of(batch)))) == 2


@pytest.mark.parametrize(
    ("body", "pending"),
    [
        ({}, 4),
        ({"only": ["failed"]}, 1),
        ({"only": ["cancelled"]}, 3),
        ({"only": ["failed", "expired", "cancelled"]}, 4),
        ({"codes": ["http_400"]}, 1),
        ({"only": ["failed"], "codes": ["http_400", "batch_cancelled"]}, 1),
    ],
)
def test_lines_are_selected(
    server: Server, client: openai.OpenAI, body: dict[str, Any], pending: int
) -> None:
    batch = create(client, upload(server, client, model=5))
    run_some(server, batch, fail=True, limit=2, cancel=True)
    counts = retry(client, batch, body).request_counts
    assert counts is not None
    assert counts.model_dump()["pending"] == pending
    assert counts.model_dump()["cancelled"] == 4 - pending if "failed" in body.get("only", []) else True


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"only": ["lost"]}, "only.0", "Input should be 'failed', 'expired' or 'cancelled'"),
        ({"only": []}, "only", "at least 1 item"),
        ({"codes": ["401"]}, "codes", "codes are http_ and a status, such as http_401"),
        ({"causes": ["key"]}, "causes", "is not the key of a cause"),
        ({"lines": [1]}, "lines", "Unknown parameter"),
    ],
)
def test_unknown_values_are_refused_with_what_is_allowed(
    server: Server, client: openai.OpenAI, body: dict[str, Any], param: str, message: str
) -> None:
    batch = create(client, upload(server, client, model=2))
    run_some(server, batch, fail=True)
    with pytest.raises(openai.BadRequestError) as refused:
        retry(client, batch, body)
    error = envelope(refused.value)
    assert error["param"] == param
    assert message in error["message"]
    assert client.batches.retrieve(batch.id).status == "completed"


def test_a_batch_that_runs_or_has_no_matching_line_is_a_conflict_that_a_repetition_cannot_solve(
    server: Server, client: openai.OpenAI
) -> None:
    running = create(client, upload(server, client, model=2))
    failed_batch = create(client, upload(server, client), endpoint="/v1/embeddings")
    ended = create(client, upload(server, client, model=2))
    run_some(server, ended, fail=False)
    for batch, code in (
        (running, "batch_in_progress"),
        (failed_batch, "batch_failed"),
        (ended, "nothing_to_retry"),
    ):
        with pytest.raises(openai.ConflictError) as refused:
            retry(client, batch)
        assert envelope(refused.value)["code"] == code
        assert refused.value.response.headers["x-should-retry"] == "false"


def test_another_tenants_batch_and_a_governed_one_are_not_found(
    server: Server, client: openai.OpenAI
) -> None:
    batch = create(client, upload(server, client, model=2))
    run_some(server, batch, fail=True)
    with server.client("stranger") as stranger, pytest.raises(openai.NotFoundError):
        retry(stranger, batch)
    user = tenant_of(server, client)
    governed = "UPDATE batchline.batches SET submitted_by = %(user)s WHERE id = %(id)s"
    act(server, lambda db: sql(db, governed, user=user, id=uuid_of(batch)))
    with pytest.raises(openai.NotFoundError):
        retry(client, batch)
