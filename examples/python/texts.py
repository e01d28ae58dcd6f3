from batchline import Batchline, Context

app = Batchline()
TEXTS = {"home": "a page about birds and fish", "news": "birds sing", "shop": "fish and more fish"}


@app.operation
async def measure(word: str) -> int:
    return len(word)


@app.operation(emits=[measure])
async def split(page: str, ctx: Context) -> int:
    words = TEXTS[page].split()
    for word in words:
        await ctx.emit(measure, word, key=f"{page}/{word}")
    return len(words)


if __name__ == "__main__":
    batch = app.sync.submit(split, TEXTS, key=str)
    progress = batch.wait()
    for name, stage in progress.stages.items():
        print(f"{name}: {stage.completed} of {stage.total}")
    print("words per page:", {result.key: result.value for result in batch.results()})
    print("letters:", sum(result.get() for result in batch.results(stage=measure)))
