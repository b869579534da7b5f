"""Finds the settings with which a stage fits into a given memory, by the estimate of its memory."""

from .estimate import Case, estimate, largest


def fit(case: Case, room: float) -> tuple[int, list[str]]:
    """Return the largest micro-batch in tokens that fits into `room` bytes (0 if none fits), and settings that fit.

    The settings are, in order of preference: a smaller micro-batch; drawing one response at a time; shorter samples.
    They are [] if the model itself does not fit.
    """
    section, least = f"train.{case.kind.name}", case._replace(micro_batch_tokens=1)
    tokens = largest(lambda tokens: estimate(case._replace(micro_batch_tokens=tokens)).peak <= room)
    if tokens >= least.read_at_once:
        return tokens, [f"{section}.micro_batch_tokens={tokens}"]
    if case.drawn and case.drawn > 1:
        _, settings = fit(case._replace(drawn=1), room)
        return 0, [f"{section}.draw_batch_size=1", *settings] if settings else []
    response = case.response_tokens
    prompt = largest(lambda tokens: estimate(least._replace(tokens=response + tokens)).peak <= room)
    if not prompt:
        return 0, []
    length = response + prompt
    shorter = least._replace(tokens=length).read_at_once
    return 0, [f"{section}.micro_batch_tokens={shorter}", f"train.max_length={length}"]
