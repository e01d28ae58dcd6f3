"""Sends lanes through the batch APIs of providers, in chunks."""
