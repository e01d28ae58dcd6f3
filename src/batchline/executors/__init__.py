"""An executor takes an item and gives a verdict: http, provider, operation, approvals; `routing` chooses one.

May import upstreams, governance and everything below. Knows nothing about claims. Start with `executor`, the
protocol.
"""
