"""What Batchline promises in numbers, measured: `batchline-bench`.

Every figure compares two contestants that take turns on one machine and one durable PostgreSQL, so it means
the same on a laptop and on a server. None of it is a test: a slow machine fails nothing.
"""
