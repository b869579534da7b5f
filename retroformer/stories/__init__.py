"""Stories: what happened at each task of a run, attempt by attempt, for people to look at."""
