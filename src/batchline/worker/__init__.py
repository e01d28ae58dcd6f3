"""One asyncio process that claims, runs and settles lines, and runs maintenance between them.

May import everything but cli and api. Start with `worker`, the composition root; then `producer` (claimer,
buffer, dispatcher) and `settler`.
"""
