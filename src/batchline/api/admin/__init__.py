"""The part of the HTTP API for administrators, under /api/v1/admin.

May import what api may. Start with `rate_limits`.
"""
