"""Webhooks: signatures, checks of addresses, and sending one message.

May import upstreams (back-off, faults), store, config and model. Start with `sender`.
"""
