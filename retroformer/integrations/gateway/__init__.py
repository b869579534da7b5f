"""An OpenAI-compatible gateway that improves agents that cannot be changed; see docs/gateway.md."""
