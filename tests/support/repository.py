"""Where the repository is: its documents and examples are tested too."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
