"""Very large batches on PostgreSQL: every line runs exactly once, whatever crashes on the way."""

__version__ = "0.1.0"
