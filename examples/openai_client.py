"""A batch with OpenAI's official client, which reads OPENAI_BASE_URL and OPENAI_API_KEY."""

import json
import time

from openai import OpenAI

client = OpenAI()
lines = [
    {
        "custom_id": f"q-{n}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "sim-small", "messages": [{"role": "user", "content": f"What is {n} squared?"}]},
    }
    for n in range(100)
]
content = "\n".join(json.dumps(line) for line in lines).encode()
file = client.files.create(file=("questions.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
assert batch.output_file_id, f"{batch.status}: {batch.errors}"
for line in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(line)
    print(answer["custom_id"], answer["response"]["body"]["choices"][0]["message"]["content"])
