"""Input files for the API, and what a server keeps of them."""

from pathlib import Path
from typing import Any, Final

import openai
import pytest

CHAT: Final = "/v1/chat/completions"


def requests(count: int, model: str = "m") -> bytes:
    return b"".join(
        b'{"custom_id": "r%d", "method": "POST", "url": "%b", "body": {"model": "%b"}}\n'
        % (n, CHAT.encode(), model.encode())
        for n in range(count)
    )


def stored(folder: Path) -> list[str]:
    """All that is in the object store, and what uploads have left there."""
    location = folder / "objects"
    return sorted(path.relative_to(location).as_posix() for path in location.rglob("*") if path.is_file())


def error_of(caught: pytest.ExceptionInfo[openai.APIStatusError]) -> dict[str, Any]:
    body: dict[str, Any] = caught.value.response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    return body
