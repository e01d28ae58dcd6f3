"""The OpenAI-compatible part of the HTTP API: files, uploads, batches, models, webhook endpoints."""
