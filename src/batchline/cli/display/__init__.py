"""What people and programs read: the console, JSON documents, the live progress."""
