"""The Python library: an app with operations, the batches that it submits, and its workers. The reference is
docs/reference/python.md; `batchline` has the public names.
"""
