"""`/`: one page to try the model in a browser.

Self-contained: no file, font or script from elsewhere. The page reads /info and calls the API like any client; when that asks for an
API key, so does the page, and keeps it in the tab's sessionStorage only.
"""

from __future__ import annotations

import secrets
from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

_NONCE = "%NONCE%"


class Page:
    def __init__(self) -> None:
        self._html = resources.files("taut.server").joinpath("page.html").read_text("utf-8")

    def routes(self) -> list[Route]:
        return [Route("/", self.show, methods=["GET"])]

    async def show(self, request: Request) -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; connect-src 'self'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; base-uri 'none'"
        )
        headers = {
            "content-security-policy": f"{policy}; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        return HTMLResponse(self._html.replace(_NONCE, nonce), headers=headers)
