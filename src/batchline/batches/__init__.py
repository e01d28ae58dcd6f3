"""Batches from creation to end: create, finalize, output lines, retention, maintenance.

May import files, store, config, model and secrets. Start with `creation`, then `finalize`.
"""
