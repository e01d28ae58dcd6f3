import sys

from orders import app

batch = app.sync.batch(sys.argv[1])
progress = batch.wait(progress=True)
print(f"{progress.completed:,} completed, {progress.failed:,} failed of {progress.total:,}")
for result in batch.results():
    if result.index == 1:
        print(f"{result.key}: {result.value}")
    elif result.error is not None:
        print(f"{result.key}: {result.error.code}: {result.error.message}")
