"""One module per command: its options, and how its result is printed.

May import everything. Start with `batches`, which has the simplest commands, or with `run`.
"""
