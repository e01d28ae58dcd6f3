"""Metrics for Prometheus, and the demand of workers for autoscalers.

A process keeps what it counts and measures itself. What is true of the whole database is read when somebody
asks, and kept for some seconds. May import all packages but `api` and `cli`. Start with `definitions`.
"""
