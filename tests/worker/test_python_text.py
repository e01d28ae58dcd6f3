"""Any text that UTF-8 has passes through PostgreSQL as part of an item, a result and an emitted item."""

import json

from batchline.model import Completed
from batchline.operations.context import Context
from batchline.operations.operation import make_operation
from batchline.store import feeding, spans
from batchline.store.session import Session
from tests.support.builders import a_pipeline, a_worker, sql, take
from tests.support.python_operations import executing, result_of

ODD_TEXT = 'NUL \0, \x01, \x7f, \\u0000, \\, ", \r\n, \u2028, ü, 🎈, \U0010ffff, \ufeff'


async def echo(text: str, ctx: Context) -> str:
    await ctx.emit("later", text)
    return text


async def later(text: str) -> str:
    return text


async def test_text_with_nul_and_other_oddities_is_stored_and_comes_back(db: Session) -> None:
    first, second = make_operation(echo, emits=["later"]), make_operation(later)
    batch, worker = await a_pipeline(db, "echo", "later", accepting=True), a_worker()
    assert await feeding.append(db, batch.id, first.url, [(b"key", first.codec.encode_item(ODD_TEXT))]) == 0
    async with executing(first, second) as executor:
        for operation in (first, second):
            (item,) = await take(db, worker)
            assert (item.claim.url, operation.codec.decode_item(item.body)) == (operation.url, ODD_TEXT)
            verdict = await executor.run(item)
            assert isinstance(verdict, Completed)
            assert result_of(verdict) == ODD_TEXT
            await spans.settle(db, worker.id, [verdict])
    stored = await sql(db, "SELECT output FROM batchline.results")
    assert [json.loads(output)["response"]["body"] for (output,) in stored] == [ODD_TEXT] * 2
