"""Typical scripts for a file of requests: asyncio, a semaphore, a result file."""
