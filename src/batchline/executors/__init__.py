"""An executor takes an item and gives a verdict."""
