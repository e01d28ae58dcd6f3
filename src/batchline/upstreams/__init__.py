"""One object per upstream: how many requests are in flight, how fast they go out, whether it can be reached.

May import what is below it; needs only config, model and secrets. Asynchronous ones: `providers`.
Start with `upstream`, which knows nothing of HTTP and composes `key_limits`, `admission` and `availability`.
Then `http_upstream`, which adds connections and routes.
"""
