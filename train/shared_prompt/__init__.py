"""A prompt and all its responses in one row: their tokens, the model's reading of them, and their batches."""
