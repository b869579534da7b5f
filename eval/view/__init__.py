"""The viewer: a local, read-only site that shows runs, stories, comparisons and what was learned."""
