"""The console: a page that runs in the browser and asks the admin API for everything.

It is plain HTML, CSS and JavaScript modules of our own, served as they are: nothing is built, and nothing is fetched from elsewhere. So it
needs no library, costs the broker only the requests that it makes, and may do exactly what its user may do over the API. The page itself
holds no data and is open to everybody who reaches the address.

Every path below `/console` that is no file answers with the same page, so each view has an address of its own.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PREFIX: Final = "/console"
ASSETS: Final = f"{PREFIX}/assets/"
TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Console:
    """The ASGI application at and below `/console`."""

    def __init__(self) -> None:
        self._files: dict[str, Response] = {}
        self._etags: dict[str, str] = {}
        for file in files(__package__).joinpath("assets").iterdir():
            suffix = f".{file.name.rpartition('.')[2]}"
            if suffix in TYPES:
                content = file.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                headers = {**HEADERS, "etag": etag}
                self._files[file.name] = Response(content, media_type=TYPES[suffix], headers=headers)
                self._etags[file.name] = etag

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        await self._answer(request)(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("the console is a page: use GET\n", 405, {**HEADERS, "allow": "GET, HEAD"})
        path = request.url.path
        name = path.removeprefix(ASSETS) if path.startswith(ASSETS) else "index.html"
        found = self._files.get(name) if path == PREFIX or path.startswith(f"{PREFIX}/") else None
        if found is None:
            return Response("not found\n", 404, HEADERS, media_type="text/plain")
        if request.headers.get("if-none-match") == self._etags[name]:
            return Response(status_code=304, headers={**HEADERS, "etag": self._etags[name]})
        return found
