"""Reinforcement learning of the reflector: PPO and GRPO, with the sampling, checkpoints and monitoring they share."""
