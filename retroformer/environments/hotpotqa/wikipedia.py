"""Wikipedia as it is today, in place of the pages of the data; its texts are CC BY-SA 4.0.

Answers differ from those of the data in what HotPotQA's questions were made from: pages have changed since 2017. Search
shows the first paragraph, as with the data; Lookup reads the whole article.
"""

import re
from typing import Any, NamedTuple

from retroformer.environments.hotpotqa.docstore import Page
from retroformer.environments.hotpotqa.mediawiki import MediaWiki
from retroformer.environments.hotpotqa.sentences import sentences
from retroformer.errors import EnvironmentFailure

_NOT_IN_TITLES = re.compile(r"[#<>\[\]{}|]")
_LONGEST_TITLE = 255
"""Bytes."""
_LONGEST_QUERY = 250
"""Characters; the wiki refuses more than 300."""
_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^=+ .* =+$")
_HITS = 10
_ARTICLES = 0
"""The namespace of articles."""


class _Hit(NamedTuple):
    """A page that a search found, and the redirect to it that it was found by."""

    title: str
    redirect: str | None


class Wikipedia:
    """An encyclopedia behind the API of a MediaWiki with the extension TextExtracts."""

    def __init__(self, wiki: MediaWiki) -> None:
        self._wiki = wiki

    def find(self, entity: str) -> Page | None:
        """The article of this title, in any case, or that one which a redirect of this title leads to.

        A title that may mean several things (a disambiguation page) is not found; `similar` then names them.

        Raises:
            EnvironmentFailure: the wiki could not be asked.
        """
        entity = " ".join(entity.replace("_", " ").split())
        if not entity or _NOT_IN_TITLES.search(entity) or len(entity.encode()) > _LONGEST_TITLE:
            return None
        found = self._article(entity)
        if found is None:
            key = entity.casefold()
            for hit in self._search(entity):
                if key in (hit.title.casefold(), (hit.redirect or "").casefold()):
                    found = self._article(hit.title)
                    break
        return _page(found) if found else None

    def similar(self, query: str, count: int = 5) -> list[str]:
        """Titles of the best articles by the wiki's own search; never the query itself, which would lead nowhere.

        Raises:
            EnvironmentFailure: the wiki could not be asked.
        """
        key = " ".join(query.split()).casefold()
        titles = (hit.title for hit in self._search(query))
        return [title for title in titles if title.casefold() not in (key, f"{key} (disambiguation)")][:count]

    def _article(self, title: str) -> dict[str, Any] | None:
        found = self._wiki.query(
            prop="extracts|pageprops",
            ppprop="disambiguation",
            explaintext="1",
            exsectionformat="wiki",
            redirects="1",
            titles=title,
        )
        match found.get("pages", []):
            case []:
                return None
            case [{"ns": int(namespace), "pageid": int(), "title": str(), "extract": str()} as page]:
                return page if namespace == _ARTICLES else None
            case [{"missing": True} | {"invalid": True} | {"special": True}]:
                return None
            case [{"ns": int(namespace)}] if namespace != _ARTICLES:
                return None
            case other:
                raise EnvironmentFailure(f"The wiki answered what is no page for {title!r}: {str(other)[:200]}")

    def _search(self, query: str) -> list[_Hit]:
        """By words alone: signs are operators of the wiki's search, such as `-` and `insource:/x/`."""
        words = " ".join(_WORD.findall(query[: 4 * _LONGEST_QUERY].lower()))[:_LONGEST_QUERY].strip()
        if not words:
            return []
        found = self._wiki.query(list="search", srsearch=words, srlimit=str(_HITS), srinfo="", srprop="redirecttitle")
        hits = found.get("search")
        if not isinstance(hits, list) or not all(isinstance(hit, dict) and "title" in hit for hit in hits):
            raise EnvironmentFailure(f"The wiki answered what is no list of pages: {str(found)[:200]}")
        return [_Hit(str(hit["title"]), hit.get("redirecttitle")) for hit in hits]


def _page(article: dict[str, Any]) -> Page | None:
    """The page that an article's plain text makes; None where it may mean several things, or says nothing."""
    lines = [line.strip() for line in article["extract"].split("\n")]
    paragraphs = [sentences(line) for line in lines if line and not _HEADING.match(line)]
    if "disambiguation" in article.get("pageprops", {}) or not paragraphs:
        return None
    spaced = tuple(f" {sentence}" for paragraph in paragraphs for sentence in paragraph)
    return Page(article["title"], spaced, len(paragraphs[0]))
