"""The example of the how-to page for executors runs as it is printed."""

import json
import os
import re
import subprocess
from pathlib import Path

from tests.support.processes import PYTHON, batchline, read_lines
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT


def test_a_worker_with_an_executor_of_the_page_finishes_a_batch(database_url: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/own-executor.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    bodies = [{"model": "m", "messages": [{"content": "one two three"}]}, {"model": "m", "messages": []}]
    lines = [
        {"custom_id": f"q-{nth}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for nth, body in enumerate(bodies)
    ]
    inputs = tmp_path / "prompts.jsonl"
    inputs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    submitted = batchline("submit", str(inputs), "--upstream", "http://words.example", "--json", *location)
    assert submitted.returncode == 0, submitted.stderr
    environment = {"BATCHLINE_DATABASE_URL": database_url, "BATCHLINE_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(
        [PYTHON, "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    batch_id = json.loads(submitted.stdout)["id"]
    output = tmp_path / "out.jsonl"
    assert batchline("results", batch_id, "-o", str(output), *location).returncode == 0
    (answered,) = read_lines(output)
    assert answered["response"]["body"] == {"words": 3}
    errors = tmp_path / "errors.jsonl"
    assert batchline("results", batch_id, "--errors", "-o", str(errors), *location).returncode == 0
    (failed,) = read_lines(errors)
    assert failed["error"]["code"] == "no_prompt"
