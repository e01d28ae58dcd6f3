"""Puts claimed lines in the order of their prompts, if their batch asks for that.

A span of such a batch has lines whose prompts begin alike (prompt_key_v1.sql), and a fetch returns them in
the order of the file.
"""

from batchline.model import Item

_NAMES = (b'"messages"', b'"prompt"', b'"input"', b'"instructions"', b'"system"')
# Bytes of a prompt that are compared: much more than the prompts of one claim differ in.
_COMPARED = 32 * 1024


def in_prompt_order(items: list[Item]) -> list[Item]:
    """The same items. Those of a lane stay together, and lanes stay in their order."""
    if not any(item.claim.settings.order for item in items):
        return items
    lanes: dict[int, int] = {}
    for item in items:
        lanes.setdefault(item.claim.lane_id, len(lanes))
    return sorted(items, key=lambda item: (lanes[item.claim.lane_id], _prompt(item)))


def _prompt(item: Item) -> bytes:
    """The beginning of the prompt, as prompt_key_v1 finds it; nothing for a batch without an order."""
    if item.claim.settings.order is None:
        return b""
    start = min((at for name in _NAMES if (at := item.body.find(name)) >= 0), default=0)
    return item.body[start : start + _COMPARED]
