"""Completion hooks: the operator's programs and functions that run after a batch has ended.

May import upstreams (back-off), batches, store, config and model. Start with `hook`, then `delivery`.
"""
