"""All SQL access: one statement per file under `sql/`, one module per subject here.

May import model and config. Start with `spans` (claim, settle, release), `sql/claim/claim.sql` and
`sql/settle/settle.sql`.
"""
