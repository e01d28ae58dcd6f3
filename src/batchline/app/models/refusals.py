"""What a client of a batch cannot do."""

from batchline.operations.errors import BatchlineError


class NotInBatch(BatchlineError, ValueError):
    """A request that cannot be a line of a batch. Nothing was stored."""


# Parts of the official client that make no sense in a batch, and why.
REFUSED = {
    **dict.fromkeys(("files", "uploads", "vector_stores", "containers"), "it stores no files"),
    "batches": "its calls are lines of a batch already",
    "audio": "audio is not JSON",
    **dict.fromkeys(("realtime", "live", "conversations"), "a conversation is no single request"),
    **dict.fromkeys(
        ("models", "fine_tuning", "evals", "admin", "webhooks", "skills", "videos", "safety", "decisions"),
        "only requests to a model can be lines",
    ),
}
