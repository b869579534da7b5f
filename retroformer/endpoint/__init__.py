"""Clients of OpenAI-compatible endpoints, and the experiment's own server."""
