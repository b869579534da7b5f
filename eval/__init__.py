"""Stage 4. Plays held-out tasks with that endpoint, arm by arm; writes runs/NAME/eval/report.{md,html}."""
