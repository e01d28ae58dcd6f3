"""The part of the HTTP API for governed operations, under /api/v1.

May import what api may. Start with `submissions` and `operations`; `vms` holds the short forms for machines.
"""
