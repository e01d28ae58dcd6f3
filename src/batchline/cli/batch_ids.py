"""Batch ids as people give them: whole, the first digits, or `@1` for the newest batch."""

import re
from uuid import UUID

from batchline.cli.display.console import CommandError
from batchline.cli.runtime import Runtime, run_async
from batchline.model import DEFAULT_TENANT, ids
from batchline.store import batch_names
from batchline.store.session import Session

_DIGITS = re.compile(r"[0-9a-f]{4,31}", re.ASCII)
_NTH = re.compile(r"@([1-9][0-9]{0,5})", re.ASCII)
# Of an ambiguous id, so many candidates are named.
_DISPLAYED = 5
_FORMS = "give the id, its first digits, or @1 for the newest batch; `batchline {}` shows them"


def batch_id_in(runtime: Runtime, text: str, *, governed_of: str | None = None) -> UUID:
    """The batch that `text` names. `governed_of`: `@1` is the newest governed batch of this tenant."""
    whole = ids.read(ids.BATCH, text)
    return whole if whole is not None else run_async(_found(runtime, text, governed_of))


async def _found(runtime: Runtime, text: str, governed_of: str | None) -> UUID:
    command = "list" if governed_of is None else "ops batches"
    digits = text.removeprefix(ids.BATCH).replace("-", "").lower()
    async with Session(runtime.url, "find") as session:
        if nth := _NTH.fullmatch(text):
            tenant = DEFAULT_TENANT if governed_of is None else governed_of
            found = await batch_names.nth_newest(
                session, tenant, int(nth[1]), governed=governed_of is not None
            )
            candidates = [] if found is None else [found]
        elif _DIGITS.fullmatch(digits):
            candidates = await batch_names.matching(session, digits, _DISPLAYED + 1, tenant=None)
        else:
            raise CommandError(f"{text!r} is not a batch id; {_FORMS.format(command)}")
    if not candidates:
        others = "; governed ones are in `batchline ops batches`" if governed_of is None else ""
        raise CommandError(f"there is no batch {text}; `batchline {command}` shows all{others}")
    if len(candidates) > 1:
        names = ", ".join(each.hex for each in candidates[:_DISPLAYED])
        more = " and more" if len(candidates) > _DISPLAYED else ""
        raise CommandError(f"{text} is ambiguous: {names}{more}; give more digits")
    return candidates[0]
