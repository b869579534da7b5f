"""GEPA (Agrawal et al., 2025): evolves one document of advice for all tasks from what its retries bring."""
