"""The site as a Starlette application, which answers only its own pages, served on the loopback interface.

Its index follows the runs while they go on.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from retroformer.coach.stories.runs import OpenRun
from retroformer.endpoint.request_guard import FORM, Headers, Refusal, listen
from retroformer.endpoint.server import Guard, server_of
from retroformer.errors import RetroformerError, StoreError

from .index import Index
from .pages.compare import compare
from .pages.learning import learning
from .pages.overview import overview
from .pages.report import report
from .pages.review import mark_story, review
from .pages.stories import stories
from .pages.story import prompt, story
from .rendering import FOLDER
from .site import NoSuchPage, Page, PageOf, Site

_PAGES = {
    "": overview,
    "report": report,
    "stories": stories,
    "story": story,
    "prompt": prompt,
    "compare": compare,
    "learning": learning,
    "review": review,
}
"""The pages by their path."""


def application(site: Site, port: int) -> Guard:
    """Return the site as an ASGI application for this port of the loopback interface."""
    pages = [Route(f"/{name}", _endpoint(site, name, show), methods=["GET"]) for name, show in _PAGES.items()]

    def version(_: Request) -> Response:
        return PlainTextResponse(site.index.version)

    async def mark(request: Request) -> Response:
        try:
            form = (await request.body()).decode("ascii")
            fields = dict(parse_qsl(form, keep_blank_values=True, errors="strict"))
        except ValueError:
            return _message(site, "The form cannot be read.", 400)
        try:
            return RedirectResponse(await run_in_threadpool(mark_story, site, fields), 303)
        except NoSuchPage as wrong:
            return _message(site, str(wrong), 400)

    static = Mount("/static", StaticFiles(directory=FOLDER / "static", follow_symlink=False))
    pages_and_forms = Starlette(
        routes=[*pages, Route("/version", version, methods=["GET"]), Route("/mark", mark, methods=["POST"]), static],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=_with_policy)],
        exception_handlers={
            404: lambda request, _: _message(site, "There is no such page.", 404),
            NoSuchPage: _error_page(site, 404),
            StoreError: _error_page(site, 503),
            RetroformerError: _error_page(site, 500),
        },
    )
    return Guard(pages_and_forms, _refused, types=[FORM], body_bytes=_FORM_BYTES, port=port)


def _endpoint(site: Site, path: str, show: PageOf) -> Callable[[Request], Response]:
    return lambda request: HTMLResponse(site.render(show(site, request.query_params), path))


def _error_page(site: Site, status: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: _message(site, str(error), status)


def _message(site: Site, text: str, status: int) -> Response:
    return HTMLResponse(site.render(Page("message.html", "Not shown", {"text": text}), ""), status)


_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With "no-referrer" browsers hide the origin of this site's own forms, too.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


_FORM_BYTES = 100_000


async def _with_policy(request: Request, call_next: RequestResponseEndpoint) -> Response:
    answer = await call_next(request)
    answer.headers.update(_HEADERS)
    return answer


def _refused(refusal: Refusal, _: Headers) -> Response:
    return PlainTextResponse(refusal.message, refusal.status, _HEADERS | refusal.headers)


_POLL_SECONDS = 2.0
_LOGGER = logging.getLogger(__name__)


@contextmanager
def open_site(runs: Sequence[OpenRun]) -> Iterator[Site]:
    """Yield the site of these runs, whose index is updated in the background until the end of the `with` block."""
    site = Site(runs, Index(runs))
    stopped = threading.Event()
    updater = threading.Thread(target=_follow, args=(site.index, stopped), name="view-index")
    updater.start()
    try:
        yield site
    finally:
        stopped.set()
        updater.join()


def _follow(index: Index, stopped: threading.Event) -> None:
    """Index new facts every two seconds; a store that cannot be read is reported once."""
    reported = ""
    while not stopped.is_set():
        try:
            index.update(stopped)
        except RetroformerError as error:
            if str(error) != reported:
                _LOGGER.warning("The stories cannot be read now: %s", error)
            reported = str(error)
        else:
            reported = ""
        stopped.wait(_POLL_SECONDS)


class SiteServer:
    """Server of a site on a port of the loopback interface; port 0 takes a free one.

    Raises ServiceError: the port cannot be used.
    """

    def __init__(self, site: Site, port: int) -> None:
        # Whoever reads the address may connect at once, before the server has started.
        self._listener = listen(port)
        port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self._server = server_of(application(site, port))

    def run(self) -> None:
        """Serve until `stop` is called or the process is interrupted."""
        with self._listener:
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """End `run`, from any thread."""
        self._server.should_exit = True
