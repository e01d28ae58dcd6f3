"""Claimed lines in the order of their prompts."""

import json
from collections.abc import Mapping
from uuid import UUID

from batchline.model import Claim, Item, RunSettings
from batchline.worker.prompt_order import in_prompt_order

PLAIN = RunSettings()
ORDERED = RunSettings(order="prefix")


def items(settings: RunSettings, *bodies: Mapping[str, object], lane: int = 1) -> list[Item]:
    claim = Claim(1, lane, UUID(int=1), 1, None, 1, "/v1/chat/completions", "m", "m", 60.0, settings)
    return [
        Item(claim, n, n + 1, b"id-%d" % (n + 1), json.dumps(body).encode()) for n, body in enumerate(bodies)
    ]


def line_nos(found: list[Item]) -> list[int]:
    return [item.line_no for item in found]


def test_prompts_that_begin_alike_come_together_whatever_comes_before_them() -> None:
    given = items(
        ORDERED,
        {"seed": 1, "messages": [{"content": "x a"}]},
        {"seed": 2, "messages": [{"content": "y a"}]},
        {"seed": 3, "messages": [{"content": "x b"}]},
        {"seed": 4, "messages": [{"content": "y b"}]},
    )
    assert line_nos(in_prompt_order(given)) == [1, 3, 2, 4]


def test_all_names_of_a_prompt_are_found() -> None:
    given = items(
        ORDERED,
        *({"model": f"m{n}", name: "b" if n % 2 else "a"} for name in ("prompt", "input") for n in range(4)),
    )
    assert line_nos(in_prompt_order(given)) == [5, 7, 6, 8, 1, 3, 2, 4]


def test_a_batch_without_an_order_stays_in_the_order_of_its_file() -> None:
    given = items(PLAIN, {"prompt": "b"}, {"prompt": "a"})
    assert in_prompt_order(given) == given


def test_lanes_stay_in_their_order() -> None:
    first = items(PLAIN, {"prompt": "b"}, {"prompt": "a"}, lane=2)
    second = items(ORDERED, {"prompt": "d"}, {"prompt": "c"}, lane=1)
    assert in_prompt_order([*first, *second]) == [*first, second[1], second[0]]
