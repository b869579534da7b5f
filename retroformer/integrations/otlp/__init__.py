"""OpenTelemetry traces of agents: read from files, received over HTTP, or watched inside the agent's own program.

An attempt is a trace, or the part of one below a span that names its task. What the agent did is in attributes of
OpenInference or in OpenTelemetry's `gen_ai.*`; its task, advice and score are in `retroformer.*` (docs/traces.md).
"""
