"""The lines of an order. Its name determines them, so the checker needs no other source."""

import msgspec

from chaos.schedule import BatchOrder
from chaos.upstream import REFUSED

URL = "/v1/chat/completions"


class Line(msgspec.Struct, frozen=True):
    custom_id: str
    body: dict[str, object]
    bad: bool


def lines(order: BatchOrder) -> list[Line]:
    return [_line(order, number) for number in range(order.lines)]


def content(order: BatchOrder) -> bytes:
    """The content of the input file."""
    requests = [
        {"custom_id": line.custom_id, "method": "POST", "url": URL, "body": line.body}
        for line in lines(order)
    ]
    return msgspec.json.Encoder().encode_lines(requests)


def _line(order: BatchOrder, number: int) -> Line:
    bad = bool(order.every_bad) and number % order.every_bad == order.every_bad - 1
    words = REFUSED if bad else f"say {number} of {order.name}"
    model = order.models[number % len(order.models)]
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{words}, {number}"}],
    }
    return Line(f"{order.name}:{number}", body, bad)
