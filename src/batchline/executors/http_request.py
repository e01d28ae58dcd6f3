"""How the request of an item is made: a POST of its body, or what an order says."""

from datetime import timedelta
from functools import lru_cache

import msgspec
from pyreqwest.request import RequestBuilder

from batchline.model import Item
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import Route


class Order(msgspec.Struct, frozen=True):
    """A request that is not simply a POST of the item. The path and the query are percent-encoded already."""

    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = "application/json"


def post(item: Item, route: Route) -> RequestBuilder:
    return (
        route.client.post(route.url)
        .header("Idempotency-Key", item.idempotency_key)
        .timeout(request_limit(item))
        .body_bytes(item.body)
    )


def ordered(order: Order, item: Item, route: Route) -> RequestBuilder:
    url = urls.below(route.upstream.url, order.path)
    builder = (
        route.client.request(order.method, url.with_query_string(order.query) if order.query else url)
        .header("Idempotency-Key", item.idempotency_key)
        .timeout(request_limit(item))
    )
    for name, value in order.headers:
        builder = builder.header(name, value)
    if order.body is None:
        return builder
    return builder.header("Content-Type", order.content_type).body_bytes(order.body)


def request_limit(item: Item) -> timedelta:
    return _limit(item.claim.settings.timeout, item.claim.seconds_left)


@lru_cache(maxsize=1024)
def _limit(timeout: float, seconds_left: float) -> timedelta:
    """The time for a request: what its batch allows, and not much past its deadline. Cached since it is the
    same for all items of a claim, and took longer to make than the rest of the request."""
    return timedelta(seconds=min(timeout, max(1.0, seconds_left)))
