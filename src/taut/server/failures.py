"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` with a fitting status.

The message of an error that taut raises on purpose for a request is shown; anything else becomes "internal error", so that no
path, trace or other request's data can leave. Non-printable characters are escaped.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from taut.errors import EngineStoppedError, MemoryBudgetError, NumericalError, OverloadedError, RequestError, UsageError

MAX_MESSAGE_LEN = 1000
RETRY_JITTER = 0.2

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}
_CODES = {404: "not_found", 405: "method_not_allowed"}


@dataclass(frozen=True)
class Failure:
    """One error, ready to be sent."""

    status: int
    message: str
    code: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, Any]:
        return {"error": {"message": printable(self.message), "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, {**(CLOSE if self.status in BODY_UNREAD else {}), **self.headers})


# Answers given before the body was read: the connection ends with them, or a client could hold it open with the rest of a body.
BODY_UNREAD = frozenset({401, 403, 404, 405, 408, 411, 413, 415, 431})
CLOSE = {"connection": "close"}


def printable(text: str) -> str:
    """`text` with every non-printable character (controls, lone surrogates) escaped, cut to a sane length."""
    if len(text) > MAX_MESSAGE_LEN:
        text = text[:MAX_MESSAGE_LEN] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def failure_of(error: BaseException) -> Failure:
    """What a client is told of `error`."""
    if isinstance(error, RequestError):
        return Failure(error.status, str(error), error.code, error.param)
    if isinstance(error, (UsageError, MemoryBudgetError)):  # of one request: it asks for more than there will ever be
        return Failure(400, str(error), error.code)
    if isinstance(error, OverloadedError):
        return Failure(503, str(error), error.code, headers=retry_after(error.retry_after_s))
    if isinstance(error, EngineStoppedError):
        return Failure(503, str(error), error.code, headers=retry_after(1.0))
    if isinstance(error, NumericalError):
        return Failure(500, str(error), error.code, headers={"x-should-retry": "false"})
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "invalid_value")
        return Failure(error.status_code, HTTPStatus(error.status_code).phrase, code, headers=dict(error.headers or {}))
    return Failure(500, "internal error; the server's log has the details", "internal_error")


def retry_after(seconds: float) -> dict[str, str]:
    """Headers that ask to come back after about `seconds`, jittered so that clients do not return in one wave."""
    jittered = max(seconds, 1.0) * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER)
    return {"retry-after": str(max(1, math.ceil(jittered))), "retry-after-ms": str(max(1, round(jittered * 1000)))}
