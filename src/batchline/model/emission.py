"""Items that a finished item adds to later stages of its batch."""

from typing import Final

import msgspec

# How urls and routing keys of Python operations begin. create_batch.sql and claim_returned_v2.sql know it.
PYTHON: Final = "python:"


class Emission(msgspec.Struct, frozen=True):
    """One item for the stage with this url. `custom_id` and `body` are UTF-8."""

    url: str
    custom_id: bytes
    body: bytes
