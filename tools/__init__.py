"""Programs for maintainers. Run from a checkout; not part of the installed package."""
