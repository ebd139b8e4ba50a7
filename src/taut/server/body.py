"""From the bytes of a request to a checked JSON object. Knows sizes, encodings and nesting, not what the fields mean."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request

from taut.errors import RequestError
from taut.server.large_json import LargeDecoder, TooManyError
from taut.server.settings import Limits

INLINE_BYTES = 2**16


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of the JSON text that `request` carries. RequestError 415: no JSON, 413: too large, 408: too slow."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":  # also keeps web pages of other origins out: browsers ask first for this type
        raise RequestError(
            "the request needs the header Content-Type: application/json", code="unsupported_media_type", status=415
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError("compressed request bodies are not accepted", code="unsupported_media_type", status=415)
    try:
        with anyio.fail_after(limits.body_timeout_s):
            return await _read(request, limits.body_bytes)
    except TimeoutError:
        raise RequestError(
            f"the request body did not arrive within {limits.body_timeout_s:g} s", code="timeout", status=408
        ) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = RequestError(f"the request body is larger than {max_bytes} bytes", code="request_too_large", status=413)
    if _declared_length(request) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    total = 0
    try:
        async for chunk in request.stream():
            total += len(chunk)
            if total > max_bytes:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestError("the client left before the body was complete", status=400) from None
    return b"".join(chunks)


def _declared_length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def parse_object(data: bytes, *, max_depth: int) -> dict[str, Any]:
    """The JSON object in `data`; RequestError when it is none, holds a number that is not finite, or is nested deeper than
    `max_depth`. Takes long when `is_large(data)`, but lets other threads run."""
    decoder = LargeDecoder if is_large(data) else json.JSONDecoder
    try:
        value = decoder(parse_constant=_reject_constant, parse_float=_finite_float).decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not valid UTF-8 at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except (json.JSONDecodeError, _NumberError, TooManyError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except ValueError:  # Python's own limit, with its own advice
        raise RequestError("the body is not valid JSON: an integer has thousands of digits", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body is a JSON {_json_name(value)}; an object is needed", code="invalid_json")
    if _is_deeper_than(value, max_depth):
        raise _too_deep(max_depth)
    return value


def is_large(data: bytes) -> bool:
    """Whether parsing `data` takes so long that it must not be done on the event loop."""
    return len(data) > INLINE_BYTES


class _NumberError(ValueError):
    """A number that JSON has not."""


def _reject_constant(name: str) -> float:
    raise _NumberError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError("a number is too large")
    return value


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    """Breadth first and without recursion, so that the depth of the input costs no stack."""
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _too_deep(max_depth: int) -> RequestError:
    return RequestError(f"the body is nested deeper than {max_depth} levels", code="invalid_json")


def _json_name(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
