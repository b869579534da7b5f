"""Selects the stories of an exported file, the most informative first."""

import sqlite3

from .index import Index

RULE = (
    "stories of marked tasks first, then of those that some arms solved and others did not, then of those where a "
    "retry changed the return; runs, and collection and evaluation, take turns"
)
"""The rule in words, for whoever reads the file."""
_STAGE = "substr(arm, 1, instr(arm || '/', '/') - 1)"
"""First part of an arm's name: an arm of `eval/` is compared with other arms of `eval/`."""
_QUERY = f"""
WITH ranked AS (
    SELECT run, {_STAGE} AS stage, task, CASE
        WHEN max(mark != '') THEN 0
        WHEN min(solved_at IS NULL) < max(solved_at IS NULL) THEN 1
        WHEN max(best) > 0 OR min(worst) < 0 THEN 2
        ELSE 3 END AS rank
    FROM story GROUP BY run, stage, task
), placed AS (
    SELECT run, stage, task, row_number() OVER (PARTITION BY run, stage ORDER BY rank, task) AS place
    FROM ranked ORDER BY place, run, stage LIMIT :most
)
SELECT story.* FROM placed CROSS JOIN story
ON story.task = placed.task AND story.run = placed.run AND {_STAGE.replace("arm", "story.arm")} = placed.stage
ORDER BY place, placed.run, placed.stage, story.arm LIMIT :most
"""


def told_stories(index: Index, most: int) -> tuple[list[sqlite3.Row], int]:
    """Return the rows of at most `most` stories in reading order, and the total number of stories."""
    with index.connect() as connection:
        rows = connection.execute(_QUERY, {"most": most}).fetchall()
        (total,) = connection.execute("SELECT count(*) FROM story").fetchone()
    return rows, total
