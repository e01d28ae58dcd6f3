from batchline import Batchline, Context, Fail

app = Batchline()
SITES = {"birds.example": ["wren", "owl"], "fish.example": ["carp", "cod", "eel"]}
stored: dict[str, int] = {}


@app.operation(chunk=100)
async def store(names: list[str]) -> list[int]:
    """One call for up to 100 names, as a bulk insert."""
    stored.update({name: len(name) for name in names})
    return [stored[name] for name in names]


@app.operation(concurrency=8, emits=[store])
async def read_page(page: str, ctx: Context) -> None:
    name = page.rpartition("/")[2]
    if name == "cod":
        raise Fail("the page is empty", code="empty_page")
    await ctx.emit(store, name)


@app.operation(emits=[read_page])
async def read_site(site: str, ctx: Context) -> int:
    for name in SITES[site]:
        await ctx.emit(read_page, f"{site}/{name}", key=name)
    return len(SITES[site])


if __name__ == "__main__":
    batch = app.sync.submit(read_site, SITES)
    progress = batch.wait()
    for name, stage in progress.stages.items():
        print(f"{name}: {stage.completed} completed, {stage.failed} failed of {stage.total}")
    for result in batch.results(stage=read_page):
        if result.error is not None:
            print(f"{result.key}: {result.error.code}: {result.error.message}")
    print({result.key: result.value for result in batch.results(stage=store)})
