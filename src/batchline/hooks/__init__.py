"""Completion hooks: the operator's programs and functions that run after a batch has ended, and callbacks of
Python apps.

May import upstreams (back-off), operations, batches, store, config and model. Start with `hook`, then
`delivery`.
"""
