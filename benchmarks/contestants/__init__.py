"""Other queues on PostgreSQL, each in a separate environment and process, and Batchline as one of them.

Each module here drives one contestant. The contestant's own Python runs it, so it imports only the
contestant, the standard library and `protocol`. The settings are the best in the contestant's documentation.
"""
