"""Webhooks: what is signed, where it may be sent, and one delivery.

May import upstreams (back-off, faults), store, config and model. Start with `sender`.
"""
