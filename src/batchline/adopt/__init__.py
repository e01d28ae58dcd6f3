"""Adoption of a live database that has one row per request, and the way back.

May import `batches`, `files` and `store`. Start reading in `phases.py`. docs/decisions/0015 says why it is
done this way, and docs/how-to/adopt.md how to use it.
"""
