"""Every environment variable that taut reads, each with what it means.

Knows names and meanings only; the value is parsed where it is used. Command line flags win over their variables.
No variable changes a result: those that touch arithmetic (TAUT_ISA, TAUT_PRECISION) are the twins of visible choices
and stand in every record that taut writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True)
class Variable:
    """One environment variable. `flag` is the command line option that it stands in for, if any."""

    name: str
    doc: str
    flag: str | None = None

    def get(self) -> str | None:
        """The value, or None when it is unset or empty."""
        return os.environ.get(self.name) or None

    def is_on(self) -> bool:
        """Whether it is set to 1, true, yes or on."""
        return (self.get() or "").lower() in TRUE_WORDS


PRECISION = Variable("TAUT_PRECISION", "Arithmetic of the linear layers: fp32 or int8 (default).", "--precision")
THREADS = Variable("TAUT_THREADS", "Compute threads; default min(CPU affinity, cgroup CPU quota).", "--threads")
MEMORY = Variable(
    "TAUT_MEMORY", "Memory budget, as 4GiB or 500MB; default the cgroup or machine limit less its use.", "--memory"
)
MAX_CONTEXT = Variable(
    "TAUT_MAX_CONTEXT", "Longest sequence in tokens, prompt and answer; default the model's own.", "--max-context"
)
EXECUTOR = Variable("TAUT_EXECUTOR", "native (default) or reference, the slow numpy oracle.", "--executor")
EXACT = Variable("TAUT_EXACT", "1: bit-identical results on every instruction set (some speed is given up).", "--exact")
DISABLE_PASS = Variable("TAUT_DISABLE_PASS", "Optimization passes to leave out, separated by spaces.", "--disable-pass")

HOST = Variable("TAUT_HOST", "Address that `taut serve` listens on; default 127.0.0.1.", "--host")
PORT = Variable("TAUT_PORT", "Port that `taut serve` listens on; default 8000, 0 picks a free one.", "--port")
API_KEY = Variable(
    "TAUT_API_KEY", "API key that clients must send; several are separated by commas. Never a flag: argv is public."
)
API_KEY_FILE = Variable(
    "TAUT_API_KEY_FILE", "File of API keys, one a line; lines starting with # are skipped.", "--api-key-file"
)
SERVED_NAME = Variable("TAUT_SERVED_NAME", "Model name shown to clients; default the model's short name.", "--served-name")
DRAIN_TIMEOUT = Variable(
    "TAUT_DRAIN_TIMEOUT", "Seconds that running requests get to finish at SIGTERM; default 30.", "--drain-timeout"
)
MAX_N = Variable("TAUT_MAX_N", "Largest `n` of one request; default 8, at most 128.", "--max-n")
MAX_TEXTS = Variable("TAUT_MAX_TEXTS", "Most prompts or texts in one request; default 256, at most 2048.", "--max-texts")
MAX_CONNECTIONS = Variable(
    "TAUT_MAX_CONNECTIONS",
    "Most connections at once; default 1024, and no more than the open files allowed to the process, less 64.",
    "--max-connections",
)
MAX_CONNECTIONS_PER_ADDRESS = Variable(
    "TAUT_MAX_CONNECTIONS_PER_ADDRESS",
    "Most connections of one client address (IPv6: one /64) at once; default no limit, for clients behind a proxy share one.",
    "--max-connections-per-address",
)

ISA = Variable("TAUT_ISA", "Force the instruction set: scalar, avx2, avxvnni or avx512; an error if it cannot run here.")
DEBUG = Variable("TAUT_DEBUG", "1: show the traceback of an error on the command line.")

VARIABLES: tuple[Variable, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Variable))
