"""Demo of a batch that survives a crash: run it, kill it half-way with SIGKILL, run it again, count.

    make demo

All its files are in `demo/`: the prompts, the output, and the data folder with its PostgreSQL.
"""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

LINES = 20_000
FOLDER = Path("demo")
BATCHLINE = [sys.executable, "-m", "batchline"]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    prompts = write_prompts(FOLDER / "prompts.jsonl")
    upstream, url = start_upstream()
    command = [
        *BATCHLINE,
        *("run", str(prompts), "--upstream", url, "-o", str(FOLDER / "answers.jsonl")),
        *("--data-dir", str(FOLDER / "data"), "--concurrency", "64"),
    ]
    try:
        say(f"A simulated model server runs at {url}. {prompts} contains {LINES:,} prompts.")
        say("batchline run " + " ".join(command[4:]))
        killed = kill_half_way(command, url)
        say(f"Killed with SIGKILL after {killed:,} requests. The same command again:")
        subprocess.run(command, check=True)
        tell_result(url)
    finally:
        upstream.terminate()
        upstream.wait()


def write_prompts(path: Path) -> Path:
    with path.open("w") as stream:
        for number in range(LINES):
            question = {"role": "user", "content": f"What is {number} squared?"}
            body = {"model": "sim-small", "messages": [question]}
            line = {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


def start_upstream() -> tuple[subprocess.Popen[str], str]:
    command = [*BATCHLINE, "simulate", "--port", "0", "--latency", "15", "--jitter", "10", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    return process, json.loads("".join(lines))["url"]


def kill_half_way(command: list[str], url: str) -> int:
    process = subprocess.Popen(command, start_new_session=True)
    while (done := stats(url)["executed"]) < LINES * 0.4 and process.poll() is None:
        time.sleep(0.05)
    # Does nothing if the run has ended before.
    process.kill()
    process.wait()
    return done


def tell_result(url: str) -> None:
    seen = stats(url)
    with (FOLDER / "answers.jsonl").open() as stream:
        answers = [json.loads(line)["custom_id"] for line in stream]
    say(f"{len(answers):,} answers, in input order: {answers == [f'q-{n}' for n in range(LINES)]}")
    say(
        f"The model server executed {seen['executed']:,} requests. {seen['replays']:,} that were in flight"
        f" when the process died were sent again with the same key, and answered without a second execution."
    )


def stats(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/stats") as response:
        found: dict[str, int] = json.load(response)
        return found


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    main()
