"""The server of the page: on 127.0.0.1, for readers with the token in the URL, and read-only.

Every request must be a GET, must name this machine in its Host header, so that no page of another site can reach the
server under its own name (DNS rebinding), and must have the token as the first part of its path. The token is in the
path, not in a cookie, because a browser sends cookies of 127.0.0.1 to all of its ports, including those of other users.
It is drawn anew at each start, logged nowhere, and sent to no other page (Referrer-Policy).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from securefda.dashboard.place import find_place
from securefda.dashboard.shared_parts import problem_section
from securefda.dashboard.site_reader import Seen, SiteReader
from securefda.dashboard.source_page import source_page
from securefda.dashboard.target_page import target_page
from securefda.errors import ConfigError
from securefda.pages.html import content_policy, live_page, own_file, script, sections_of, source_hash
from securefda.pages.parts import Page, State

HOST: Final = "127.0.0.1"
MOST_CONNECTIONS: Final = 32
MOST_STREAMS: Final = 8
_LOOK_S: Final = 1.0
"""How often the files are looked at, while a page is open."""
_ALIVE_S: Final = 15.0
"""How often the server writes to an open page without changes, so that a lost connection shows."""
_TICK_S: Final = 0.2
_SHARE: Final = 0.2
_TOKEN_BYTES: Final = 32
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page ready to send.

    Attributes:
        title: of the browser's window.
        state: the state's word, for those to whom the page is read.
        sections: key, digest and HTML of each, in order; the first is the head of the page.
    """

    title: str
    state: str
    sections: tuple[tuple[str, str, Markup], ...]


def page_of(seen: Seen) -> Page:
    """Return the page of what was seen."""
    match seen.place.role:
        case "target":
            return target_page(seen)
        case "source":
            return source_page(seen)
        case _:
            folder = seen.place.asked
            text = f"There is no run in {folder} yet. This page shows it as soon as it begins."
            return Page("No run yet", [str(folder)], State("none", "Not begun", text), [problem_section(seen.problems)])


def rendered(page: Page) -> Rendered:
    """Render the parts of a page as HTML. Every text in it is escaped."""
    word, sections = page.state.word, sections_of(page)
    digests = (hashlib.sha256(html.encode("utf-8")).hexdigest()[:16] for _, html in sections)
    parts = tuple((key, digest, html) for (key, html), digest in zip(sections, digests, strict=True))
    return Rendered(f"{word}: {page.title} – securefda", word, parts)


class Guard:
    """ASGI middleware that refuses every request not from this machine's own browser with the token.

    Args:
        app: what answers the others.
        token: the first part of the path.
        port: that the server listens on.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token.encode("ascii")
        names = (HOST, "localhost")
        self._hosts = {f"{name}:{port}".encode() for name in names} | {
            name.encode()
            for name in names
            if port == 80  # a browser leaves that port out
        }
        # A document loads its own style, script and icon, and the events of this server.
        own = (f"script-src {source_hash(script())}", "connect-src 'self'", "img-src 'self'", "frame-ancestors 'none'")
        fixed = {**_HEADERS, "Content-Security-Policy": content_policy(*own)}
        self._headers = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in fixed.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return PlainTextResponse("403: open the URL that securefda dashboard printed\n", 403)
        if scope["method"] != "GET":
            return PlainTextResponse("405: this page is for reading\n", 405, {"Allow": "GET"})
        first = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not secrets.compare_digest(first.encode("utf-8", "surrogatepass"), self._token):
            return PlainTextResponse("403: open the URL that securefda dashboard printed\n", 403)
        return None


class Watcher:
    """Looks at a site's files for all open pages together, on a thread, at most once a second.

    Files that take long to look at are looked at less often, so that the look takes a fifth of one core at most.
    """

    def __init__(self, reader: SiteReader) -> None:
        self._reader = reader
        self._looking = asyncio.Lock()
        self._seen: Seen | None = None
        self._page: Rendered | None = None
        self._next = 0.0

    async def page(self) -> Rendered:
        """Return the page as of the last look."""
        async with self._looking:
            began = time.monotonic()
            if self._page is None or began >= self._next:
                self._page = await asyncio.to_thread(self._look)
                took = time.monotonic() - began
                self._next = began + max(_LOOK_S, took / _SHARE)
            return self._page

    def _look(self) -> Rendered:
        seen = self._reader.look()
        if self._page is None or seen is not self._seen:
            self._seen, page = seen, rendered(page_of(seen))
            return page
        return self._page


def make_app(folder: Path, token: str, port: int, ended: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Make the application.

    Args:
        folder: what is shown.
        token: that every path begins with.
        port: that the Host header must name.
        ended: whether the server is about to stop, so that open streams end.
    """
    watcher = Watcher(SiteReader(folder))
    streams = 0

    async def document(_: Request) -> Response:
        page = await watcher.page()
        return Response(live_page(page.title, page.sections), media_type="text/html")

    async def small_icon(_: Request) -> Response:
        return Response(own_file("icon.svg"), media_type="image/svg+xml")

    async def events(_: Request) -> Response:
        if streams >= MOST_STREAMS:
            return PlainTextResponse(f"503: {MOST_STREAMS} pages are open already; close one\n", 503)
        return StreamingResponse(counted(), media_type="text/event-stream")

    async def counted() -> AsyncIterator[bytes]:
        nonlocal streams
        streams += 1
        try:
            async for event in _events(watcher, ended):
                yield event
        finally:
            streams -= 1

    routes = [
        Route(f"/{token}/", document, methods=["GET"]),
        Route(f"/{token}/events", events, methods=["GET"]),
        Route(f"/{token}/icon.svg", small_icon, methods=["GET"]),
    ]
    return Guard(Starlette(routes=routes), token=token, port=port)


async def _events(watcher: Watcher, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the page now and at every change, and a comment now and then, as server-sent events."""
    sent: Rendered | None = None
    said_at = time.monotonic()
    while not ended():
        page = await watcher.page()
        if page != sent:
            fields = {"title": page.title, "state": page.state, "sections": page.sections}
            yield f"event: page\ndata: {json.dumps(fields)}\n\n".encode()
            sent, said_at = page, time.monotonic()
        elif time.monotonic() - said_at >= _ALIVE_S:
            yield b": still here\n\n"
            said_at = time.monotonic()
        await asyncio.sleep(_TICK_S)


class _Bounded(H11Protocol):
    """Accepts a limited number of connections, and drops one that sends nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Accept a connection, or close it."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)


def listen(port: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1; port 0 takes a free one.

    Raises:
        ConfigError: ``--port``: it is taken, or not permitted.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = f"{port} on {HOST} cannot be opened: {os.strerror(error.errno or 0)}"
        raise ConfigError("--port", why, hint="name another port; 0, the default, takes one that is free") from error


def serve(folder: Path, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page of ``folder`` until Ctrl-C or SIGTERM.

    Args:
        folder: what is shown; it need not exist yet.
        port: on 127.0.0.1; 0 for one that is free.
        tell: is given the URL once, when the server listens.

    Raises:
        ConfigError: the folder is of something else, or the port cannot be opened.
    """
    find_place(folder)
    own = listen(port)
    with own:
        taken, token = own.getsockname()[1], secrets.token_urlsafe(_TOKEN_BYTES)
        config = uvicorn.Config(
            make_app(folder, token, taken, lambda: server.should_exit),
            http=_Bounded,
            ws="none",
            lifespan="off",
            access_log=False,  # its lines would have the token
            log_config=None,
            log_level="error",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)

        async def serving() -> None:
            tell(f"http://{HOST}:{taken}/{token}/")  # inside the event loop, which Ctrl-C ends in order from here on
            await server.serve(sockets=[own])

        with _ended_by_signals():
            asyncio.run(serving())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block; the server ends in order first and then raises them again."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
