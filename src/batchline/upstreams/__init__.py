"""One object per upstream: how many requests are in flight, how fast they go out, whether it can be reached.

May import batches (output lines), store, config, model and secrets. Asynchronous ones: `providers`.
Start with `upstream`, which knows nothing of HTTP, and `http_upstream`, which adds connections and routes.
"""
