"""Stage 3. Reads the base model and the adapters of a run; serves the OpenAI protocol at one HTTP endpoint."""
