"""Benchmarks of Batchline: `batchline-bench`.

Every figure compares contestants that take turns on one machine and one durable PostgreSQL, so it means the
same on a laptop and on a server. Benchmarks are not tests: a slow machine fails nothing.
"""
