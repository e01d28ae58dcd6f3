"""The HTTP API: FastAPI over the packages below.

`openai/`, `governance/` and `admin/` hold the routes; the modules here are what all routes share. May import
everything but cli. Start with `app`.
"""
