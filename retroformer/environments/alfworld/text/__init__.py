"""Short forms of ALFWorld's text."""
