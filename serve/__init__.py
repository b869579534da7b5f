"""Stage 3. Reads the base model and the adapters of a run; answers the OpenAI protocol at one HTTP endpoint."""
