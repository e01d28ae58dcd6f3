"""`batchline run`, apart from its options."""
