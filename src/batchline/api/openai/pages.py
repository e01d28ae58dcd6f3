"""The form of a list in OpenAI's API: a page of objects, and whether there are more."""

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel


class ListPage(BaseModel):
    """Subclasses define the type of `data`."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, found: Sequence[Any], limit: int) -> Self:
        """A page of at most `limit` objects. The query reads one more, to see if there are more."""
        data = list(found[:limit])
        return cls(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(found) > limit,
        )
