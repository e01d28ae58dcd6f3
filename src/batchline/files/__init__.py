"""Input and stored files: parsing, ingest, uploads in parts, and the object store.

May import store, config, model and host. Start with `ingest`; `parsing` defines which lines are accepted.
"""
