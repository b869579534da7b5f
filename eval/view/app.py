"""The site as one Starlette application: a route for each page."""

from collections.abc import Callable
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from retroformer.errors import RetroformerError, StoreError

from .guards import Guards
from .pages import PAGES
from .pages.review import mark_story
from .rendering import FOLDER
from .site import NoSuchPage, Page, PageOf, Site

_FORM_BYTES = 1 << 16
"""Largest form: a note of 4,000 characters, each of which may take twelve bytes."""


def application(site: Site, port: int) -> Starlette:
    """Return the site as an ASGI application for this port of the loopback interface."""
    pages = [Route(f"/{name}", _endpoint(site, name, show), methods=["GET"]) for name, show in PAGES.items()]

    def version(_: Request) -> Response:
        return PlainTextResponse(site.index.version)

    async def mark(request: Request) -> Response:
        try:
            fields = await _form(request)
            return RedirectResponse(await run_in_threadpool(mark_story, site, fields), 303)
        except NoSuchPage as wrong:
            return _message(site, str(wrong), 400)
        except StoreError as error:
            return _message(site, str(error), 503)

    static = Mount("/static", StaticFiles(directory=FOLDER / "static", follow_symlink=False))
    return Starlette(
        routes=[*pages, Route("/version", version, methods=["GET"]), Route("/mark", mark, methods=["POST"]), static],
        middleware=[Middleware(Guards, port=port)],
        exception_handlers={404: _not_found(site)},
    )


def _endpoint(site: Site, path: str, show: PageOf) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            page = show(site, request.query_params)
            return HTMLResponse(site.render(page, path))
        except NoSuchPage as missing:
            return _message(site, str(missing), 404)
        except StoreError as error:
            return _message(site, str(error), 503)
        except RetroformerError as error:
            return _message(site, str(error), 500)

    return endpoint


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises NoSuchPage if it is too large or not text."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            raise NoSuchPage("The note is too long.")
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict"))
    except ValueError:
        raise NoSuchPage("The form cannot be read.") from None


def _message(site: Site, text: str, status: int) -> Response:
    return HTMLResponse(site.render(Page("message.html", "Not shown", {"text": text}), ""), status)


def _not_found(site: Site) -> Callable[[Request, Exception], Response]:
    return lambda request, _: _message(site, "There is no such page.", 404)
