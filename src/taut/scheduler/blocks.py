"""BlockPool: which KV block belongs to whom. Integers only; the bytes are the KVPool's.

Full blocks are named by a hash chained over the tokens before them, and stay findable after their owner has left until the block is
needed: a later prompt with the same beginning takes them over (prefix reuse). The tokens are compared on a hit, not the hash alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from taut.engine.kv_cache import BLOCK_TOKENS


@dataclass(frozen=True)
class _Name:
    """What a published block holds: the chain's digest before it, and its own tokens."""

    before: bytes
    tokens: tuple[int, ...]

    @property
    def digest(self) -> bytes:
        words = b"".join(token.to_bytes(4, "little") for token in self.tokens)
        return hashlib.sha256(self.before + words).digest()


class BlockPool:
    """Owns `num_blocks` block ids. Every block is free, cached (named, without an owner) or owned `count` times."""

    def __init__(self, num_blocks: int, salt: bytes = b"", *, reuse: bool = True) -> None:
        self.num_blocks = num_blocks
        self._salt, self._reuse = hashlib.sha256(salt).digest(), reuse
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owners: dict[int, int] = {}
        self._names: dict[int, _Name] = {}
        self._found: dict[bytes, int] = {}  # digest -> block
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_owned(self) -> int:
        return len(self._owners)

    def take(self, count: int) -> list[int]:
        """`count` blocks with one owner each. The caller has checked num_available."""
        assert count <= self.num_available
        taken = []
        for _ in range(count):
            if not self._free:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
                self._free.append(block)
            block = self._free.pop()
            self._owners[block] = 1
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one ownership of each block. Later blocks are offered for reuse of their bytes first: a prefix serves more prompts."""
        for block in reversed(blocks):
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            del self._owners[block]
            if block in self._names:
                self._cached[block] = None
            else:
                self._free.append(block)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """The longest chain of published blocks that begins `tokens`, with an ownership taken of each. At least the last token is left
        to compute, so that there is a row to sample from."""
        matched: list[int] = []
        digest = self._salt
        for begin in range(0, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS) if self._reuse else ():
            name = _Name(digest, tuple(tokens[begin : begin + BLOCK_TOKENS]))
            digest = name.digest
            block = self._found.get(digest)
            if block is None or self._names[block] != name:
                break
            matched.append(block)
        for block in matched:
            self._owners[block] = self._owners.get(block, 0) + 1
            self._cached.pop(block, None)
        return matched

    def publish(self, blocks: Sequence[int], tokens: Sequence[int], begin: int, end: int) -> None:
        """Name the blocks that the first `end` tokens fill, from block `begin` on; a block whose content is known already stays unnamed."""
        if not self._reuse:
            return
        first = blocks[begin - 1] if begin else None
        if first is not None and first not in self._names:
            return  # its twin holds the name, and the chain goes on there
        digest = self._salt if first is None else self._names[first].digest
        for index in range(begin, end // BLOCK_TOKENS):
            name = _Name(digest, tuple(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]))
            digest = name.digest
            if digest in self._found:
                if self._found[digest] != blocks[index]:
                    return
                continue
            self._names[blocks[index]] = name
            self._found[digest] = blocks[index]

    def _forget(self, block: int) -> None:
        name = self._names.pop(block)
        del self._found[name.digest]

    def clear_cache(self) -> None:
        """Forget every cached block; owned ones stay findable."""
        while self._cached:
            block, _ = self._cached.popitem()
            self._forget(block)
            self._free.append(block)

    def check_integrity(self, owned: Sequence[Sequence[int]]) -> None:
        """Assert that every block is in exactly one state and that `owned` (the block lists of all sequences) explains every ownership."""
        counts: dict[int, int] = {}
        for blocks in owned:
            assert len(set(blocks)) == len(blocks), "a sequence owns a block twice"
            for block in blocks:
                counts[block] = counts.get(block, 0) + 1
        assert counts == self._owners, f"owners {self._owners} are not explained by the sequences {counts}"
        states = [*self._free, *self._cached, *self._owners]
        assert sorted(states) == list(range(self.num_blocks)), "a block is in no state or in two"
        assert all(self._found[name.digest] == block for block, name in self._names.items())
        assert len(self._found) == len(self._names)
        assert set(self._cached) <= set(self._names) and not set(self._free) & set(self._names)
