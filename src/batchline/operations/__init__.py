"""Python functions as operations: their options, the types of their items, and what a handler may do.

Imports model and nothing else of Batchline. Start with `operation`, then `codec` and `context`.
"""
