"""Logs of Inspect (`inspect eval`), read by the package `inspect_ai` itself."""
