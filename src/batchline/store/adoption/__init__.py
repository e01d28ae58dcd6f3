"""Adoption of a database with one row per request: the statements, and the transactions that they run in."""
