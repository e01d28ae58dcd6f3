from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from batchline import Batchline

app = Batchline()


@app.operation
async def shout(text: str) -> str:
    return text.upper()


@asynccontextmanager
async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
    # Leave the worker out if `batchline worker service:app` runs elsewhere.
    async with app, app.worker():
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/batches")
async def submit(texts: list[str]) -> dict[str, str]:
    batch = await app.submit(shout, texts)
    return {"id": batch.id}


@api.get("/batches/{batch_id}")
async def status(batch_id: str) -> dict[str, str | int]:
    try:
        batch = await app.batch(batch_id)
    except LookupError:
        raise HTTPException(404, "there is no such batch") from None
    progress = await batch.status()
    return {"status": progress.status, "completed": progress.completed, "total": progress.total}


@api.get("/batches/{batch_id}/results")
async def results(batch_id: str) -> list[str | None]:
    batch = await app.batch(batch_id)
    return [result.value async for result in batch.results()]
