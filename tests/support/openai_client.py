"""OpenAI's official client for tests."""

import weakref

import openai


def openai_client(key: str, url: str, *, max_retries: int = 2) -> openai.OpenAI:
    """A client that a test need not close.

    One that is not closed belongs to a cycle of references. The garbage collector may finalize its sockets
    before the client itself, and each gives a ResourceWarning, in whatever test is running then. So the
    connections are closed as soon as the client is unreachable, before anything is finalized.
    """
    client = openai.OpenAI(api_key=key, base_url=f"{url}/v1", max_retries=max_retries, timeout=60)
    weakref.finalize(client, client._client.close)
    return client
