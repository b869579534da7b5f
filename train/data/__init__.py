"""Training data: read from the store, tokenised, and kept on disk as rows of tokens."""
