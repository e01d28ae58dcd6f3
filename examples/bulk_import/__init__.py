"""An import in three stages: a manifest is read, pages are scraped, entities are resolved."""
