"""Protection of credentials: they are hidden in everything that is written."""
