"""The OpenAI-compatible part of the HTTP API: files, uploads, batches, models, webhook endpoints.

May import what api may. Start with `batches` and `files`, one module per kind of object.
"""
