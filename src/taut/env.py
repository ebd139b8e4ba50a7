"""Every environment variable that taut reads, each with what it means.

Knows names and meanings only; the value is parsed where it is used. Command line flags win over their variables.
No variable changes a result: those that touch arithmetic (TAUT_ISA, TAUT_PRECISION) are the twins of visible choices
and stand in every record that taut writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from taut.errors import UsageError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})


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
        """Whether it is set to 1, true, yes or on. UsageError when it says neither yes nor no."""
        word = (self.get() or "").lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            raise UsageError(f"{self.name} is {word!r}; 1, true, yes, on and 0, false, no, off are accepted")
        return word in TRUE_WORDS


PRECISION = Variable(
    "TAUT_PRECISION",
    "Of the linear layers; default int8, or an artefact's own. -gN: a scale for N inputs. auto: the fastest that stays close to fp32.",
    "--precision",
)
PIN = Variable(
    "TAUT_PIN",
    "A precision for the linear layers of this name, as 'layers.*.down=fp16'; repeatable, the last match counts, or several separated by spaces.",
    "--pin",
)
KV = Variable(
    "TAUT_KV",
    "Of the KV cache: fp32, bf16, int8 or k8v4 (keys int8, values 4 bits); default int8 beside linear layers of integers, else fp32.",
    "--kv",
)
THREADS = Variable(
    "TAUT_THREADS", "Compute threads; default as many as CPU affinity and the cgroup's quota allow.", "--threads"
)
MEMORY = Variable(
    "TAUT_MEMORY",
    "Memory for weights, KV cache and activations, as 4G, 4GiB or 500MB; default what the machine or its cgroup has free.",
    "--memory",
)
MAX_CONTEXT = Variable(
    "TAUT_MAX_CONTEXT",
    "Most tokens of one sequence, prompt and answer; default, and at most, the model's own.",
    "--max-context",
)
EXECUTOR = Variable("TAUT_EXECUTOR", "What runs the plan; default native. reference is the slow numpy oracle.", "--executor")
ATTENTION = Variable(
    "TAUT_ATTENTION",
    "How softmax is taken; default auto, the fastest measured. flash: online, tile by tile; plain: over all keys at once.",
    "--attention",
)
EXACT = Variable(
    "TAUT_EXACT",
    "Give the same bits on every instruction set: precision bf16 computes in fp32 even where AVX512_BF16 is there. The others always do.",
    "--exact",
)
DISABLE_PASS = Variable(
    "TAUT_DISABLE_PASS",
    "Leave out an optimization pass (taut inspect MODEL --explain lists them); repeatable, or several separated by spaces.",
    "--disable-pass",
)

CACHE = Variable(
    "TAUT_CACHE",
    "Folder of packed weights, so that a model that was loaded before starts sooner; off keeps none. Default ~/.cache/taut.",
)

HOST = Variable("TAUT_HOST", "Address to listen on; default 127.0.0.1, this machine only.", "--host")
PORT = Variable("TAUT_PORT", "Port to listen on; default 8000, 0 picks a free one.", "--port")
API_KEY = Variable(
    "TAUT_API_KEY", "API key that clients must send; several are separated by commas. Never a flag: argv is public."
)
API_KEY_FILE = Variable(
    "TAUT_API_KEY_FILE", "File of API keys, one a line; lines starting with # are skipped.", "--api-key-file"
)
SERVED_NAME = Variable("TAUT_SERVED_NAME", "The model's name for clients; default its short name.", "--served-name")
DRAIN_TIMEOUT = Variable(
    "TAUT_DRAIN_TIMEOUT", "Seconds that running requests get to finish at SIGTERM; default 30.", "--drain-timeout"
)
MAX_N = Variable("TAUT_MAX_N", "Most answers (n) to one request, 1 to 128; default 8.", "--max-n")
MAX_TEXTS = Variable("TAUT_MAX_TEXTS", "Most prompts or texts in one request, 1 to 1024; default 256.", "--max-texts")
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

ISA = Variable(
    "TAUT_ISA", "Force the instruction set: scalar, avx2, avxvnni, avx512, avx512bf16 or amx; an error if it cannot run here."
)
DEBUG = Variable("TAUT_DEBUG", "1: show the traceback of an error on the command line.")

VARIABLES: tuple[Variable, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Variable))
