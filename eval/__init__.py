"""Stage 4. Swaps that endpoint into trials on held-out tasks, arm by arm; writes trajectories to the store and runs/NAME/eval/report.{md,html}."""
