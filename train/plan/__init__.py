"""Memory of the stages of a config: estimated before anything is loaded, or measured by real steps."""
