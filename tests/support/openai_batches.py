"""Batches of the HTTP API, through the official client."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import openai
from openai.types import Batch as OpenAIBatch

from batchline.governance import keys
from batchline.model import ids
from batchline.store.session import Session
from tests.support.builders import a_file, on
from tests.support.serving import Server

T = TypeVar("T")

CHAT: Final = "/v1/chat/completions"


def tenant_of(server: Server, client: openai.OpenAI) -> str:
    async def find(db: Session) -> str:
        key = await keys.authenticate(db, client.api_key)
        assert key is not None
        return key.tenant

    return on(server.database, find)


def act(server: Server, scenario: Callable[[Session], Awaitable[T]]) -> T:
    return on(server.database, scenario)


def upload(server: Server, client: openai.OpenAI, **lanes: int) -> str:
    """An input file of the client's tenant, straight into the database."""
    tenant = tenant_of(server, client)
    return ids.show(ids.FILE, act(server, lambda db: a_file(db, lanes or {"model": 3}, tenant=tenant)))


def create(client: openai.OpenAI, file_id: str, **more: Any) -> OpenAIBatch:
    requested: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **more}
    return client.batches.create(input_file_id=file_id, **requested)


def uuid_of(batch: OpenAIBatch) -> UUID:
    found = ids.read(ids.BATCH, batch.id)
    assert found is not None
    return found


def envelope(error: openai.APIStatusError) -> dict[str, Any]:
    body = error.response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def is_valid(batch: OpenAIBatch) -> OpenAIBatch:
    """The official client builds its types without looking; here they are checked."""
    return OpenAIBatch.model_validate(batch.model_dump(), strict=True)
