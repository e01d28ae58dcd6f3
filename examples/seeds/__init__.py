"""The verification steps of the five documents behind Batchline, live: see README.md."""
