"""ALFWorld's games: released and generated ones, their engine and their solutions."""
