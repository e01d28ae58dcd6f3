"""One object per upstream: how many requests are in flight, how fast they go out, whether it can be reached.

May import what is below it; needs only config, model and secrets. A new provider's client belongs here.
Start with `upstream`, which knows nothing of HTTP, and `http_upstream`, which adds connections and routes.
"""
