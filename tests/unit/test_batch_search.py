"""The search for a batch in a provider's list, whatever the list's order and entries are."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from batchline.upstreams.relay.batch_api import ChunkOrder
from batchline.upstreams.relay.connection import NoAnswer, RelayConnection
from batchline.upstreams.relay.openai_batches import OpenAIBatches

ORDER = ChunkOrder("k", "/v1/x", 1_000_000.0, "file-mine", ("refused",))
MINE = {"id": "mine", "created_at": 1_000_010, "input_file_id": "file-mine"}


class ListedPages:
    """A connection to a provider whose list has these pages, by the id that they come after."""

    def __init__(self, page: Callable[[str], Any]) -> None:
        self._page = page
        self.requests = 0

    async def ask(self, method: str, path: str, *, query: str = "") -> bytes:
        self.requests += 1
        assert self.requests < 10, "the search does not end"
        return json.dumps(self._page(query.partition("after=")[2])).encode()


async def search(page: Callable[[str], Any]) -> tuple[str | None, int]:
    pages = ListedPages(page)
    return await OpenAIBatches().find(cast(RelayConnection, pages), ORDER), pages.requests


def two_pages(first: list[Any]) -> Callable[[str], Any]:
    return lambda after: {"data": [MINE]} if after else {"data": first, "has_more": True}


OLD = [{"id": f"o{n}", "created_at": 1000 + n} for n in range(3)]


@pytest.mark.parametrize(
    "first",
    [
        OLD,
        OLD[:1],
        [{"id": "a"}, {"id": "b"}],
        [*OLD[::-1], {"id": "a", "created_at": None}],
        [{"id": "n"}, 7, {"id": 7}, {"id": "z", "created_at": 2_000_000, "metadata": {"n": 1}}],
        [{"id": "a", "created_at": 2_000_000, "request_counts": {"completed": None}}],
        [{"id": "refused", "created_at": 1_000_020, "input_file_id": "file-mine"}],
    ],
    ids=["oldest first", "one entry", "undated", "partly undated", "odd entries", "odd counts", "refused"],
)
async def test_a_batch_on_the_second_page_is_found(first: list[Any]) -> None:
    assert await search(two_pages(first)) == ("mine", 2)


async def test_the_search_ends_at_older_batches() -> None:
    assert await search(two_pages(OLD[::-1])) == (None, 1)


async def test_a_list_that_repeats_itself_is_an_error() -> None:
    with pytest.raises(NoAnswer, match="repeats itself"):
        await search(lambda after: {"data": [{"id": "z", "created_at": 2_000_000}], "has_more": True})
