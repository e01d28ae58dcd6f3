"""Embeddings of several texts in one batch. Each vector has the custom_id of its text."""

import json
import time

from openai import OpenAI

texts = {"apple": "a fruit that grows on trees", "boat": "it floats on water", "cloud": "water, high up"}

client = OpenAI()
lines = [
    {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "sim-embedding", "input": text},
    }
    for name, text in texts.items()
]
content = "\n".join(json.dumps(line) for line in lines).encode()
file = client.files.create(file=("texts.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
assert batch.output_file_id, f"{batch.status}: {batch.errors}"
for line in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(line)
    vector = answer["response"]["body"]["data"][0]["embedding"]
    print(answer["custom_id"], len(vector), "dimensions")
