"""Contestants that do the least that could do, each in a process of its own."""
