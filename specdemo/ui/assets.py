"""Routes for the page's own files: everything comes from this server, so the page works without a network."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path

import plotly
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ASSETS = Path(__file__).resolve().parents[2] / "assets"
PREFIX = "/page-files"
"""Nobody's GRADIO_ROOT_PATH: of an address that begins with that, the server takes it for what a proxy left there."""

STYLES = ("base", "controls", "lanes", "tokens", "tree", "details", "screen", "narrow", "touch", "focus")


class _Revalidated(StaticFiles):
    """Static files that a browser asks about each time (an unchanged one costs a 304)."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


class LastSlash:
    """A proxy may serve the page at /sub as well as at /sub/. Seen from the former, the page's relative addresses lead
    out of it, so the page says itself what they are relative to, above Gradio's own base."""

    _SAID = (
        b"<script>if (!location.pathname.endsWith('/')) document.head.prepend("
        b"Object.assign(document.createElement('base'), {href: `${location.pathname}/`}))</script>"
    )

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []  # the answer's beginning, which gives its length

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            begins, body = held and held.pop(), message.get("body", b"")
            if begins and b"<head>" in body:  # anything else that is answered here stays as it is
                headers = MutableHeaders(scope=begins)
                if "content-length" in headers:
                    headers["content-length"] = str(int(headers["content-length"]) + len(self._SAID))
                message["body"] = body.replace(b"<head>", b"<head>" + self._SAID, 1)
            if begins:
                await send(begins)
            await send(message)

        page = ("", scope.get("root_path", "").rstrip("/"))  # whether the proxy strips the sub-path or not
        is_page = scope["type"] == "http" and scope["path"].rstrip("/") in page
        await self.app(scope, receive, say if is_page else send)


@cache
def _plotly() -> bytes:
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return gzip.compress(source.read_bytes(), 6)


def _serve_plotly(_: Request) -> Response:
    headers = {"Content-Encoding": "gzip", "Cache-Control": "public, max-age=86400"}
    return Response(_plotly(), media_type="text/javascript", headers=headers)


def _serve_no_tools(_: Request) -> Response:
    """Gradio's page about the API asks whether there is an MCP server (it takes any success for one), and a browser
    reports a 404 as an error of the page. Another status says no without that."""
    return Response(status_code=300)


def _folder(name: str) -> BaseRoute:
    """No Mount: that would take a sub-path, which a proxy has stripped, to be in every address."""
    files = _Revalidated(directory=ASSETS / name)

    async def serve(request: Request) -> Response:
        return await files.get_response(os.path.normpath(request.path_params["file"]), request.scope)

    return Route(f"{PREFIX}/{name}/{{file:path}}", serve)


def routes() -> list[BaseRoute]:
    """The page's script and style, and the plotly.js that its Python package carries."""
    return [
        Route(f"{PREFIX}/plotly.min.js", _serve_plotly),
        Route("/gradio_api/mcp/schema", _serve_no_tools),
        _folder("js"),
        _folder("css"),
    ]
