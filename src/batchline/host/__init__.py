"""This machine: free disk space, private folders, messages between processes.

Imports nothing of Batchline.
"""
