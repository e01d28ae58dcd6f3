"""Contestants that do only the minimum, each in a separate process."""
