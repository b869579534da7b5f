"""ALFWorld's household games as text: the official release, or generated ones of the same kind."""

from retroformer.environments.alfworld.grammar import check_grammar, grammar_of
from retroformer.environments.alfworld.taskset import AlfworldTaskset, taskset

__all__ = ["AlfworldTaskset", "check_grammar", "grammar_of", "taskset"]
