"""Ray: collects and evaluates on the machines of a Ray cluster."""
