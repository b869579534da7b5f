"""Stage 2. Reads rated reflections from the store; writes LoRA adapters to runs/NAME/{warm,sft,reward,ppo,dpo,grpo}."""
