"""Finds the settings with which a stage fits into a given memory, by the estimate of its memory."""

from .estimate import Case, estimate, largest


def fit(case: Case, room: float) -> tuple[int, list[str]]:
    """Return the largest micro-batch of a stage that fits into `room` bytes (0 if none fits), and settings that fit.

    The settings are, in order of preference: the largest micro-batch that divides the stage's batch; drawing one
    response at a time; shorter samples. They are [] if the model itself does not fit.
    """
    section, batch = f"train.{case.kind.name}", getattr(case.train, case.kind.name).batch_size
    if size := largest(lambda size: estimate(case._replace(micro_batch=size)).peak <= room):
        dividing = max(divisor for divisor in range(1, min(size, batch) + 1) if batch % divisor == 0)
        return size, [f"{section}.micro_batch_size={dividing}"]
    if case.drawn and case.drawn > 1:
        _, settings = fit(case._replace(drawn=1), room)
        return 0, [f"{section}.draw_batch_size=1", *settings] if settings else []
    response, least = case.response_tokens, case._replace(micro_batch=1)
    prompt = largest(lambda tokens: estimate(least._replace(tokens=response + tokens)).peak <= room)
    return 0, [f"{section}.micro_batch_size=1", f"train.max_length={response + prompt}"] if prompt else []
