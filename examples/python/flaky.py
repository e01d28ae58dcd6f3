from batchline import Batchline, Context, Fail, Parked, Retry

app = Batchline()


@app.operation(max_attempts=4, backoff=(0.1, 1), timeout=10)
async def convert(name: str, ctx: Context) -> str | Parked:
    match name:
        case "busy":
            if ctx.attempt == 1:
                raise Retry("the converter is busy", after=0.2)
        case "missing":
            raise Fail("there is no such file", code="not_found")
        case "slow":
            # Another system works on it. This is called again later, and is no new attempt.
            if ctx.task_id is None:
                return Parked("task-7", after=0.5)
            return f"slow, by {ctx.task_id}"
        case "broken":
            raise ValueError("page 3 cannot be read")
    return f"{name}, attempt {ctx.attempt}"


if __name__ == "__main__":
    batch = app.sync.submit(convert, ["good", "busy", "missing", "slow", "broken"], key=str)
    batch.wait()
    for result in batch.results():
        print(result.key, result.attempts, result.value or f"{result.error}")
