"""A curated mutation suite for the parts that must never be wrong.

Each mutant is one realistic mistake: a lock dropped, an off-by-one, a fence skipped, a tenant ignored.
`make mutants` applies one at a time to a copy of the repository and runs the tests that should notice. A
mutant that survives shows a missing test. Start reading in `mutant.py`, then in any of the catalogs.
"""
