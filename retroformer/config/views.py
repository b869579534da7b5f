"""The form in which an experiment shows a failure to its reflector."""

from functools import partial

from retroformer.config.experiment import Experiment
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.method.prompts import Render, adaptation_prompt, load_pack, reflection_prompt


def reflection_renderer(experiment: Experiment) -> Render:
    """Return the function that renders a failure as the reflector's prompt.

    Raises:
        ConfigError: the environment or the actor does not offer this view.
        MissingInput: the prompt pack does not exist.
    """
    render = _renderer(experiment)
    if experiment.reflector.history == "all":
        return render
    return lambda failure, memory: render(failure, memory.model_copy(update={"earlier": ()}))


def _renderer(experiment: Experiment) -> Render:
    view, environment = experiment.reflector.view, experiment.environment
    views = extras(environment).views
    if view in views:
        return views[view]
    if reads_pack(experiment):
        pack = load_pack(experiment.actor.prompts, environment.name)
        if view == "full":
            return partial(reflection_prompt, pack, experiment.reflector.prompt_characters)
        if experiment.actor.kind != "react":
            raise ConfigError("reflector.view=actor goes on in the prompt of a ReAct actor: set actor.kind=react.")
        return partial(adaptation_prompt, pack)
    choices = ", ".join(("full", "actor", *views))
    raise ConfigError(f"reflector.view={view} does not exist for {environment.name}: set it to one of {choices}.")


def reads_pack(experiment: Experiment) -> bool:
    """Return True if the text of the reflector's prompt comes from the prompt pack."""
    return experiment.reflector.view in ("full", "actor")
