"""One module per command: its options, and how its result is printed."""
