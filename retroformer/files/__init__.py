"""File input and output: bounded reading, durable writing, canonical JSON."""
