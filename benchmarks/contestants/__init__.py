"""Other queues on PostgreSQL, each in an environment and processes of its own, and Batchline as one of them.

A module here drives one contestant: it is run by that contestant's own Python, so it imports nothing but the
contestant, the standard library and `protocol`. Settings are the best that its documentation names.
"""
