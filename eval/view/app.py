"""The site as one Starlette application: a route for each page."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from retroformer.errors import RetroformerError, StoreError

from .guards import Guards
from .pages import PAGES
from .rendering import FOLDER
from .site import NoSuchPage, Page, PageOf, Site


def application(site: Site, port: int) -> Starlette:
    """Return the site as an ASGI application for this port of the loopback interface."""
    pages = [Route(f"/{name}", _endpoint(site, name, show), methods=["GET"]) for name, show in PAGES.items()]

    def version(_: Request) -> Response:
        return PlainTextResponse(site.version())

    static = Mount("/static", StaticFiles(directory=FOLDER / "static", follow_symlink=False))
    return Starlette(
        routes=[*pages, Route("/version", version, methods=["GET"]), static],
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


def _message(site: Site, text: str, status: int) -> Response:
    return HTMLResponse(site.render(Page("message.html", "Not shown", {"text": text}), ""), status)


def _not_found(site: Site) -> Callable[[Request, Exception], Response]:
    return lambda request, _: _message(site, "There is no such page.", 404)
