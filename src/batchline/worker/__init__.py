"""One asyncio process that claims, runs and settles lines, and runs maintenance between them.

May import everything but cli and api. Start with `service`, the protocol that all parts follow, and `worker`,
which composes them; then `producer` (claimer, buffer, dispatcher) and `settler`.
"""
