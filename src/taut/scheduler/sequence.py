"""The state of one accepted request. The integers are primary; every length and state is derived."""

from __future__ import annotations

from dataclasses import dataclass, field

from taut.engine.kv_cache import blocks_for
from taut.scheduler.request import GenerateRequest, Usage


@dataclass(eq=False)
class Sequence:
    """A request being continued. `computed` tokens of it are in the cache; `blocks` hold them. `cached` is what prefix reuse gave first."""

    request: GenerateRequest
    seed: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    published: int = 0
    blocks: list[int] = field(default_factory=list)
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet computed: 1 while decoding, more during prefill."""
        return len(self.tokens) - self.computed

    @property
    def is_decoding(self) -> bool:
        return self.num_pending == 1 and self.num_generated > 0

    def blocks_missing(self, num_tokens: int) -> int:
        """Blocks to take before the cache can hold `num_tokens` tokens."""
        return max(0, blocks_for(num_tokens) - len(self.blocks))

    @property
    def usage(self) -> Usage:
        return Usage(len(self.request.prompt), self.num_generated, self.cached)
