"""Governed bulk operations: what may be submitted, by whom, within which limits, and who approves it.

May import batches, files, store, config, model and secrets. Start with `governor`; then `submissions`,
`decisions` and `changes`. A new limit belongs in `limits`, operations that come with the program in `packs`.
"""
