"""HotPotQA with Search, Lookup and Finish over a local docstore."""

from retroformer.environments.hotpotqa.taskset import HotpotqaTaskset, taskset

__all__ = ["HotpotqaTaskset", "taskset"]
