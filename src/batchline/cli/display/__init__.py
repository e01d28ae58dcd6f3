"""Output for people and programs: the console, JSON documents, the progress display.

May import everything, but only reads. Start with `console`.
"""
