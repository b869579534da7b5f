"""Stories: what happened on each task of a run, attempt by attempt."""
