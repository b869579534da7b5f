"""Sentences quoted from a report: a page has them word for word, and the report makes them from its own tables."""

import re

from eval.measure.statistics import Comparison, MeanInterval
from eval.report.headline import Claim, sentence
from retroformer.files.document import emphasis, strong
from tests.support.markdown_tables import markdown
from tests.support.runs import ROOT
from tests.test_docs import PAGES

QUOTE = re.compile(r"(?<!`)<!--\s+from\s+(\S+)\s+-->\s*(.+?\.)(?=\s|\*|$)", re.DOTALL)
"""A quoted sentence behind the name of the file that has it; not an example of one in code."""
EVIDENCE = (ROOT / "docs/results/evidence-report.md").read_text()


def plain(text: str) -> str:
    """Return text without emphasis, line breaks and capitals."""
    return " ".join(text.replace("*", "").casefold().split())


def missing_quotes(text: str) -> list[str]:
    """Return the quoted sentences of a page that the named file does not have."""
    return [quote for source, quote in QUOTE.findall(text) if plain(quote) not in plain((ROOT / source).read_text())]


def test_every_quoted_sentence_is_in_the_report_that_it_names() -> None:
    texts = [page.read_text() for page in PAGES]
    assert any(QUOTE.findall(text) for text in texts)
    assert [quote for text in texts for quote in missing_quotes(text)] == []


def test_a_changed_number_is_no_quote() -> None:
    (quote,) = re.findall(r"^- (\*\*rule\*\* solves .*)$", EVIDENCE, re.MULTILINE)
    page = "*<!-- from docs/results/evidence-report.md -->\n" + quote.replace("**rule**", "Rule") + "*\n"
    assert missing_quotes(page) == []
    assert missing_quotes(page.replace("98.5%", "98.6%"))


def rows(header: str) -> list[list[str]]:
    """Return the rows of the evidence's table with this header."""
    table = EVIDENCE.partition(f"{header} |")[2].partition("\n\n")[0]
    return [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]


def interval(cell: str) -> MeanInterval:
    return MeanInterval(*map(float, re.findall(r"-?\d+\.\d+", cell)))


def test_the_headline_of_the_evidence_follows_from_its_tables() -> None:
    """It was written anew under a later claim rule, as its runs are not kept."""
    shares = {
        row[0]: interval(row[3]).mean for row in rows("| arm | by trial 0 | by trial 1 | by trial 2 | last return")
    }
    headline = []
    for first, second, difference, _, *tested in rows("| first - second | with these seeds | only first solved"):
        if second == "retry alone" or (first, second) == ("trained reflector", "warm start"):
            # Only pairs without training seeds have counts of tasks that one arm alone solved.
            p_value = float(tested[2].strip("< ")) / (1 + tested[2].startswith("<")) if tested[0] != "-" else None
            measured = Claim(shares[first], 134, 3, Comparison(interval(difference), p_value))
            shown = (strong(first), " (a yardstick)" * (first == "oracle"))
            headline.append(f"- {markdown(sentence(shown, (emphasis(second),), measured))}")
    assert EVIDENCE.partition("\n\n")[2].partition("\n\n")[0].splitlines() == headline
