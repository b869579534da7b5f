"""A case, for tests to change."""

from typing import Any

from retroformer.cases.case import Case


def case(**changes: Any) -> Case:
    """Return a case in which advice turned a failure into a success."""
    fields: dict[str, Any] = {
        "task": {"id": "refund-1", "input": "Refund order 4711."},
        "attempt": {"score": 0.0, "output": "I cannot find the order."},
        "advice": {"text": "Search by customer first.", "model": "sft"},
        "retry": {"score": 1.0, "output": "Refunded."},
    }
    return Case.model_validate({name: value for name, value in (fields | changes).items() if value is not None})
