"""The HTTP side of the endpoint: the OpenAI protocol, its checks and limits."""
