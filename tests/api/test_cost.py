"""GET /v1/batches/{id} says what a batch has cost, in a field that OpenAI's clients ignore."""

from pathlib import Path

from openai.types import Batch as OpenAIBatch

from batchline.config.settings import PriceSettings, ServerSettings
from batchline.model import DEFAULT_TENANT, Completed, Usage, ids
from batchline.store import spans
from batchline.store.session import Session
from tests.support.builders import a_file, a_worker, on, take
from tests.support.serving import NOWHERE, serving

PRICES = (PriceSettings("large", input=2.0, output=10.0, cached_input=1.0), PriceSettings("small", input=1.0))


def test_a_batch_of_several_models_costs_what_each_of_them_costs(database_url: str, tmp_path: Path) -> None:
    settings = ServerSettings(upstreams=(NOWHERE,), prices=PRICES, sessions=4, streams=2)

    async def a_file_of_three(db: Session) -> str:
        return ids.show(
            ids.FILE, await a_file(db, {"large": 1, "small": 1, "other": 1}, tenant=DEFAULT_TENANT)
        )

    async def answer_all(db: Session) -> None:
        worker = a_worker()
        usage = Usage(input_tokens=1000, cached_tokens=400, output_tokens=100)
        await spans.settle(
            db, worker.id, [Completed(item, 200, b"{}", usage) for item in await take(db, worker)]
        )

    with serving(database_url, tmp_path, settings) as server, server.client() as client:
        batch = client.batches.create(
            input_file_id=on(database_url, a_file_of_three),
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        on(database_url, answer_all)
        found = client.batches.retrieve(batch.id)
        assert OpenAIBatch.model_validate(found.model_dump(), strict=True)
        with server.http(client.api_key) as http:
            extension = http.get(f"/v1/batches/{batch.id}").json()["batchline"]
    cost = extension["cost"]
    # large: 600 × 2 + 400 × 1 + 100 × 10 dollars per million; small: 1000 × 1.
    assert cost["spent"] == (1200 + 400 + 1000 + 1000) / 1e6
    assert cost["unpriced_models"] == ["other"]
    assert cost["max_cost"] is None
    assert (extension["reused"], extension["failures"], extension["paused_by"]) == (0, [], None)


def test_without_prices_the_cost_is_null(database_url: str, tmp_path: Path) -> None:
    async def one(db: Session) -> str:
        return ids.show(ids.FILE, await a_file(db, {"m": 1}, tenant=DEFAULT_TENANT))

    with serving(database_url, tmp_path) as server, server.client() as client:
        batch = client.batches.create(
            input_file_id=on(database_url, one), endpoint="/v1/chat/completions", completion_window="24h"
        )
        with server.http(client.api_key) as http:
            extension = http.get(f"/v1/batches/{batch.id}").json()["batchline"]
            assert (extension["failures"], extension["cost"]) == ([], None)
