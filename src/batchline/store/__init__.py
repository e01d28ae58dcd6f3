"""All SQL access: statements in `sql/`, database functions in `functions/`, one module per subject here.

May import model and config. Start with `spans` (claim, settle, release), `functions/claim_v2.sql` and
`functions/settle_v2.sql`.
"""
