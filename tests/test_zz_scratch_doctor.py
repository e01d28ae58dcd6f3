import asyncio, pytest, psycopg
from tests.builders import *
from batchline.store import spans, batches
def test_poll(database_url):
    async def scenario(db):
        batch = await a_batch(db, 3)
        w = a_worker()
        await take(db, w, 2)
        await batches.close(db, batch.id, "pause")
        await kill(db, w)
        print(await spans.poll(db, a_worker().id, Scope()))
        assert 0
    on(database_url, scenario)
