"""The chaos harness: real processes, seeded faults, and a check of every line from outside."""
