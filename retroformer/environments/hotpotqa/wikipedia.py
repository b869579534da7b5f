"""Live Wikipedia, in place of the pages of the data; its texts are CC BY-SA 4.0.

Answers differ from the data on which HotPotQA's questions are based: pages have changed since 2017. Search shows the
first paragraph, as with the data; Lookup reads the whole article.
"""

import re
from typing import Any, NamedTuple

from retroformer.environments.hotpotqa.docstore import Page
from retroformer.environments.hotpotqa.mediawiki import MediaWiki
from retroformer.errors import EnvironmentFailure

_NOT_IN_TITLES = re.compile(r"[#<>\[\]{}|]")
_LONGEST_TITLE = 255
"""Maximum length of a title in bytes."""
_LONGEST_QUERY = 250
"""Maximum length of a query in characters; the wiki refuses more than 300."""
_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^=+ .* =+$")
_HITS = 10
_ARTICLES = 0
"""Namespace of articles."""


class _Hit(NamedTuple):
    """Page that a search found, and the redirect through which it was found."""

    title: str
    redirect: str | None


class Wikipedia:
    """Encyclopedia behind the API of a MediaWiki with the extension TextExtracts."""

    def __init__(self, wiki: MediaWiki) -> None:
        self._wiki = wiki

    def find(self, entity: str) -> Page | None:
        """Return the article of this title, ignoring case, or the target of a redirect of this title.

        An ambiguous title (a disambiguation page) is not found; `similar` then names the candidates.

        Raises:
            EnvironmentFailure: the wiki could not be asked.
        """
        entity = " ".join(entity.replace("_", " ").split())
        if not entity or _NOT_IN_TITLES.search(entity) or len(entity.encode()) > _LONGEST_TITLE:
            return None
        article = self._article(entity)
        if article is None:
            key = entity.casefold()
            for hit in self._search(entity):
                if key in (hit.title.casefold(), (hit.redirect or "").casefold()):
                    article = self._article(hit.title)
                    break
        return _page(article) if article else None

    def similar(self, query: str, count: int = 5) -> list[str]:
        """Return titles of the best articles by the wiki's own search, never the query itself: it leads nowhere.

        Raises:
            EnvironmentFailure: the wiki could not be asked.
        """
        key = " ".join(query.split()).casefold()
        titles = (hit.title for hit in self._search(query))
        return [title for title in titles if title.casefold() not in (key, f"{key} (disambiguation)")][:count]

    def _article(self, title: str) -> dict[str, Any] | None:
        reply = self._wiki.query(
            prop="extracts|pageprops",
            ppprop="disambiguation",
            explaintext="1",
            exsectionformat="wiki",
            redirects="1",
            titles=title,
        )
        match reply.get("pages", []):
            case []:
                return None
            case [{"ns": int(namespace), "pageid": int(), "title": str(), "extract": str()} as page]:
                return page if namespace == _ARTICLES else None
            case [{"missing": True} | {"invalid": True} | {"special": True}]:
                return None
            case [{"ns": int(namespace)}] if namespace != _ARTICLES:
                return None
            case other:
                raise EnvironmentFailure(f"The wiki gave an invalid answer for the page {title!r}: {str(other)[:200]}")

    def _search(self, query: str) -> list[_Hit]:
        """Search by words alone: signs such as `-` and `insource:/x/` are operators of the wiki's search."""
        words = " ".join(_WORD.findall(query[: 4 * _LONGEST_QUERY].lower()))[:_LONGEST_QUERY].strip()
        if not words:
            return []
        reply = self._wiki.query(list="search", srsearch=words, srlimit=str(_HITS), srinfo="", srprop="redirecttitle")
        hits = reply.get("search")
        if not isinstance(hits, list) or not all(isinstance(hit, dict) and "title" in hit for hit in hits):
            raise EnvironmentFailure(f"The wiki gave an invalid list of pages: {str(reply)[:200]}")
        return [_Hit(str(hit["title"]), hit.get("redirecttitle")) for hit in hits]


def _page(article: dict[str, Any]) -> Page | None:
    """Return the page of an article's plain text; None if it is a disambiguation page or empty."""
    lines = [line.strip() for line in article["extract"].split("\n")]
    paragraphs = [sentences(line) for line in lines if line and not _HEADING.match(line)]
    if "disambiguation" in article.get("pageprops", {}) or not paragraphs:
        return None
    spaced = tuple(f" {sentence}" for paragraph in paragraphs for sentence in paragraph)
    return Page(article["title"], spaced, len(paragraphs[0]))


_END = re.compile(r"([.!?])[\"'\u201d\u2019)\]]*\s+")
_LAST_WORD = re.compile(r"[\w.]*$")
_WORDS = "mr mrs ms dr st jr sr vs prof gen col lt sgt capt rev hon inc ltd co corp ca approx fl op vol pp ed feat"
_ABBREVIATIONS = frozenset(_WORDS.split())
_LONGEST_WORD = 20


def sentences(paragraph: str) -> list[str]:
    """Return the sentences in order, without the blanks between them, accurately enough for Lookup.

    A sentence ends with a full stop, question or exclamation mark before a blank, unless a small letter follows, or the
    stop belongs to an initial or an abbreviation (`J. K.`, `U.S.`, `Dr.`): joining two is better than cutting one.
    """
    pieces, start = list[str](), 0
    for end in _END.finditer(paragraph):
        next_character = paragraph[end.end() : end.end() + 1]
        if not next_character or next_character.islower() or (end[1] == "." and _is_short(paragraph, end.start())):
            continue
        pieces.append(paragraph[start : end.end()].strip())
        start = end.end()
    return [piece for piece in (*pieces, paragraph[start:].strip()) if piece]


def _is_short(paragraph: str, stop: int) -> bool:
    """Return True if the word before the full stop at this position is an initial or an abbreviation."""
    word = _LAST_WORD.search(paragraph[max(0, stop - _LONGEST_WORD) : stop])
    assert word is not None
    return (len(word[0]) == 1 and word[0].isalpha()) or "." in word[0] or word[0].lower() in _ABBREVIATIONS
