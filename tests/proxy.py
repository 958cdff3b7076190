"""A reverse proxy as people put one before the page: it gives one sub-path of a site to it, and strips it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_OF_ONE_CONNECTION = {"connection", "content-length", "transfer-encoding", "host"}


class Proxy:
    """`behind` is the address of the server that gets what is asked under `prefix`; the rest of the site is a 404."""

    def __init__(self, prefix: str, address: str) -> None:
        self.prefix, self.address = prefix, address
        self.behind = ""
        self._client = httpx.AsyncClient(timeout=None)

    async def forward(self, request: Request) -> Response:
        path = request.url.path
        if path != self.prefix and not path.startswith(f"{self.prefix}/"):
            return PlainTextResponse("another page of this site", 404)
        rest, query = path.removeprefix(self.prefix) or "/", request.url.query.encode()
        asked = self._client.build_request(
            request.method,
            httpx.URL(self.behind).copy_with(path=rest, query=query),
            headers=_passed(request.headers),
            content=await request.body(),
        )
        answer = await self._client.send(asked, stream=True)
        done = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, _passed(answer.headers), background=done)


def _passed(headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _OF_ONE_CONNECTION}


@contextmanager
def proxied(prefix: str) -> Iterator[Proxy]:
    """A proxy that is running."""
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(prefix, f"http://127.0.0.1:{listening.getsockname()[1]}")
    app = Starlette(routes=[Route("/{path:path}", proxy.forward, methods=["GET", "HEAD", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield proxy
    server.should_exit = True
    thread.join(10)
