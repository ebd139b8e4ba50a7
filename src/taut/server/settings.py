"""What the operator chose and what one request may ask for. Plain values; reads no environment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

MAX_N_HARD = 128
MAX_TEXTS_HARD = 1024


@dataclass(frozen=True)
class Limits:
    """Bounds on one HTTP request, checked before anything is tokenized.

    `chars_per_token` times the context length caps a prompt's characters, so that tokenizing is never asked of megabytes.
    """

    body_bytes: int = 8 * 2**20
    body_timeout_s: float = 60.0
    header_bytes: int = 16 * 2**10
    header_fields: int = 100
    json_depth: int = 32
    max_n: int = 8
    max_texts: int = 256
    chars_per_token: int = 32


@dataclass(frozen=True)
class Timing:
    """Seconds. `header_s` for a header to end, and for the first one to begin; `keep_alive_s` for the next one to begin. `ping_s`
    between keep-alive comments of a silent stream, `write_s` until a client that does not read is dropped, `stall_s` without an
    engine step while work runs until the engine counts as dead."""

    ping_s: float = 15.0
    write_s: float = 30.0
    stall_s: float = 60.0
    keep_alive_s: int = 30
    header_s: float = 10.0
    drain_s: float = 30.0


@dataclass(frozen=True)
class Settings:
    """One server. `key_digests`: SHA-256 of the API keys, none asks for none; `aliases`: further accepted model names;
    `max_connections` is lowered to what the process may open; an address is an IPv4 address or an IPv6 /64."""

    key_digests: tuple[bytes, ...] = field(default=(), repr=False)
    served_name: str | None = None
    aliases: tuple[str, ...] = ()
    max_open_requests: int = 1024
    max_connections: int = 1024
    max_connections_per_address: int | None = None
    limits: Limits = Limits()
    timing: Timing = Timing()


def digest_key(key: str) -> bytes:
    """SHA-256 of an API key: the only form in which the server keeps it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def split_keys(text: str) -> tuple[str, ...]:
    """API keys of a file or variable: one a line or separated by commas; blank parts and lines starting with # are skipped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return tuple(key for key in (part.strip() for line in lines for part in line.split(",")) if key)
