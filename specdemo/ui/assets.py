"""Routes for the page's own files: everything comes from this server, so the page works without a network."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import plotly
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

ASSETS = Path(__file__).resolve().parents[2] / "assets"
PREFIX = "/specdemo"
STYLES = ("base", "controls", "lanes", "tokens", "tree", "details", "screen", "narrow", "touch", "focus")


class _Revalidated(StaticFiles):
    """Static files that a browser asks about each time (an unchanged one costs a 304)."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


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


def routes() -> list[BaseRoute]:
    """The page's script and style under /specdemo, and the plotly.js that its Python package carries."""
    return [
        Route(f"{PREFIX}/plotly.min.js", _serve_plotly),
        Route("/gradio_api/mcp/schema", _serve_no_tools),
        *(Mount(f"{PREFIX}/{name}", _Revalidated(directory=ASSETS / name)) for name in ("js", "css")),
    ]
