import hashlib

from batchline import Batchline

app = Batchline()


@app.operation(run_in="process", timeout=5, max_attempts=2)
def digest(rounds: int) -> str:
    """Uses a core, and never waits."""
    value = b"start"
    for _ in range(rounds):
        value = hashlib.sha256(value).digest()
    return value.hex()[:8]


if __name__ == "__main__":
    for result in app.map(digest, [1, 1_000, 100_000_000], return_exceptions=True):
        print(result)
