"""Output for people and programs: the console, JSON documents, the progress display."""
