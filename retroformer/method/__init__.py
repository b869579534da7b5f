"""The method: facts of attempts and reflections, prompts, ratings, preference pairs and the trial loop."""
