"""Report chapter about advice in ALFWorld."""
