"""This machine: free disk space, private folders, messages between processes.

Imports nothing of Batchline. Start with `disk`, which says what a full disk looks like, then `private`.
"""
