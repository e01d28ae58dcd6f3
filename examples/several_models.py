"""Several models in one file. Finished answers can be read while the batch still runs."""

import json
import time
from collections import Counter

from openai import OpenAI

client = OpenAI()
models = ("sim-small", "sim-medium", "sim-large")
lines = [
    {
        "custom_id": f"{model}-{n}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": [{"role": "user", "content": f"Name {n} colours."}]},
    }
    for n in range(100)
    for model in models
]
content = "\n".join(json.dumps(line) for line in lines).encode()
file = client.files.create(file=("colours.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    if batch.output_file_id:
        so_far = client.files.content(batch.output_file_id).text.splitlines()
        print(f"{batch.status}: {len(so_far)} answers so far")
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
assert batch.output_file_id, f"{batch.status}: {batch.errors}"
answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
for model, count in Counter(answer["response"]["body"]["model"] for answer in answers).items():
    print(model, count)
