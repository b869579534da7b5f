"""How the supervisor hands the API keys to the API server."""

API_KEYS_VARIABLE = "RETROFORMER_SERVE_API_KEYS"
"""Keys come by the environment: a command line can be read by every user of the machine."""
