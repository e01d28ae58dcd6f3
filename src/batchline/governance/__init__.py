"""Governed bulk operations: submissions, approvals, changes and limits. Also every other act that is audited:
API keys, webhook endpoints and limits of single users. An act and its audit record are one function here,
which api and cli call.

May import batches, files, store, config, model, secrets and host. Start with `submissions`, `decisions` and
`changes`. A new limit belongs in `limits`, operations that come with Batchline in `packs`.
"""
