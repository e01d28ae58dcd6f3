"""What people write who have a file of requests and an afternoon: asyncio, a semaphore, a result file."""
