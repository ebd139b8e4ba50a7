"""What happens to every HTTP request before its route: an id, header bounds, the API key, a count, and a last resort for bugs.

Plain ASGI, outermost first: Context, then Auth. A route is closed unless it is in OPEN_ROUTES.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import time
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taut.errors import EngineStoppedError, RequestError
from taut.server.failures import CLOSE, Failure, failure_of
from taut.server.metrics import Metrics
from taut.server.settings import Limits, digest_key

OPEN_ROUTES = frozenset({"/livez", "/readyz", "/health"})
MAX_REQUEST_ID_LEN = 128
CLIENT_GONE = 499

log = logging.getLogger("taut.server")


class Context:
    """Gives each request an id (the client's own when it is clean), bounds its headers, counts it, makes a bug a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: Limits, routes: frozenset[str]) -> None:
        self._app, self._metrics, self._limits, self._routes = app, metrics, limits, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = clean_request_id(Headers(scope=scope).get("x-request-id"))
        began, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode("ascii"))]
            await send(message)

        try:
            refusal = self._headers_refusal(scope) or _framing_refusal(scope)
            await (refusal.response() if refusal else self._app)(scope, receive, send_with_id)
        except asyncio.CancelledError:  # only the end of the server cancels a request
            if not status:
                await failure_of(EngineStoppedError("the server has shut down")).response()(scope, receive, send_with_id)
        except Exception as error:
            log.exception("request %s failed", request_id)
            failure = failure_of(error)
            self._metrics.count_error(failure)
            if not status:
                await failure.response()(scope, receive, send_with_id)
        finally:
            status = CLIENT_GONE if scope.get("taut.client_gone") else status
            route, method = self._labels(scope)
            self._metrics.http.labels(route, method, str(status)).inc()
            if scope["path"] not in OPEN_ROUTES:
                log.info("%s %s %d %.0f ms %s", method, route, status, (time.monotonic() - began) * 1000, request_id)

    def _headers_refusal(self, scope: Scope) -> Failure | None:
        fields = scope["headers"]
        num_bytes = sum(len(name) + len(value) for name, value in fields) + len(scope.get("query_string", b""))
        if len(fields) <= self._limits.header_fields and num_bytes <= self._limits.header_bytes:
            return None
        message = (
            f"the headers are too large: at most {self._limits.header_fields} fields and {self._limits.header_bytes} bytes"
        )
        return Failure(431, message, "headers_too_large")

    def _labels(self, scope: Scope) -> tuple[str, str]:
        """(route, method) from fixed sets: what a client writes enters neither the metrics nor the log."""
        path = "/v1/models/{id}" if scope["path"].startswith("/v1/models/") else scope["path"]
        method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
        return path if path in self._routes else "other", method


def _framing_refusal(scope: Scope) -> Failure | None:
    """Where one server sees the end of a body, another must too: else a proxy can be made to pass on a request unseen (request
    smuggling; RFC 9112, section 6.1)."""
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" not in names:
        return None
    if b"content-length" in names:
        reason = "a request has either Content-Length or Transfer-Encoding, not both"
    elif scope.get("http_version") == "1.0":
        reason = "HTTP/1.0 knows no Transfer-Encoding"
    else:
        return None
    return Failure(400, reason, "invalid_http", headers=CLOSE)


class Auth:
    """Asks for one of the API keys on every route that is not open, before the body is read.

    `Authorization: Bearer KEY`; for browsers also Basic, with any user and the key as the password.
    """

    def __init__(self, app: ASGIApp, key_digests: tuple[bytes, ...]) -> None:
        self._app, self._digests = app, key_digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests or scope["path"] in OPEN_ROUTES or self._is_known(_key_of(scope)):
            await self._app(scope, receive, send)
            return
        error = RequestError("a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key", status=401)
        response = failure_of(error).response()
        response.headers["www-authenticate"] = 'Basic realm="taut"' if scope["path"] == "/" else 'Bearer realm="taut"'
        await response(scope, receive, send)

    def _is_known(self, key: str | None) -> bool:
        if key is None:
            return False
        digest = digest_key(key)
        # Every digest is compared, each in constant time: how long it takes says nothing about any key.
        return sum([hmac.compare_digest(digest, known) for known in self._digests]) > 0


def _key_of(scope: Scope) -> str | None:
    scheme, _, value = Headers(scope=scope).get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        pair = base64.b64decode(value.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return pair.partition(":")[2]


def clean_request_id(text: str | None) -> str:
    """`text` when it is 1 to 128 printable ASCII characters without spaces, else a fresh id. Only a label, never a key."""
    if text and len(text) <= MAX_REQUEST_ID_LEN and all("!" <= character <= "~" for character in text):
        return text
    return uuid.uuid4().hex
