"""The pages of the site by their path, each a function of the site and the query string."""

from collections.abc import Mapping

from ..site import PageOf
from .compare import compare
from .learning import learning
from .overview import overview
from .report import report
from .review import review
from .stories import stories
from .story import prompt, story

PAGES: Mapping[str, PageOf] = {
    "": overview,
    "report": report,
    "stories": stories,
    "story": story,
    "prompt": prompt,
    "compare": compare,
    "learning": learning,
    "review": review,
}
