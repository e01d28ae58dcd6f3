"""Hides secrets in items, errors and logs, and credentials that an upstream quotes.

Imports nothing of Batchline. Start with `masking`.
"""
