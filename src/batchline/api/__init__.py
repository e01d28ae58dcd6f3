"""The HTTP API: FastAPI over the packages below.

`openai/`, `governance/` and `admin/` hold the routes; all routes share the modules here. May import
everything except cli. Start with `app`.
"""
