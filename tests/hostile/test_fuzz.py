"""Sound files spoiled at random, with fixed seeds: every one opens or gives an error of the tree, never another
exception or a crash.
"""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

from hostile.folder_cases import TOKENIZER
from hostile.raw import LLAMA, folder, llama_gguf, pack, write
from taut import checkpoint
from taut.errors import TautError

NUMBERS = (0, 1, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**33, 2**40, 2**62, 2**63, 2**64 - 1)
GGUF = llama_gguf()
GGUF_HEADER_LEN = GGUF.index(b"blk.0.ffn_down") + 64
WEIGHTS = pack({"model.embed_tokens.weight": np.ones((64, 32)), "b": np.ones(3)})
WEIGHTS_HEADER_LEN = 8 + int.from_bytes(WEIGHTS[:8], "little")
TOKENIZER_JSON = json.dumps({**TOKENIZER, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}).encode()
CONFIG_JSON = json.dumps({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}, "eos_token_id": [1, 2]}).encode()


def spoil(data: bytes, header_len: int, rng: random.Random) -> bytes:
    """One to four changes in the first `header_len` bytes: a byte, a number, a piece cut out, a piece repeated, the
    rest cut off.
    """
    spoiled = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(max(1, min(header_len, len(spoiled))))
        kind = rng.randrange(6)
        if kind <= 1:
            spoiled[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 2:
            width = rng.choice((4, 8))
            spoiled[at : at + width] = (rng.choice(NUMBERS) & (2 ** (8 * width) - 1)).to_bytes(width, "little")
        elif kind == 3:
            del spoiled[at : at + rng.randrange(1, 40)]
        elif kind == 4:
            spoiled[at:at] = spoiled[max(0, at - rng.randrange(1, 60)) : at]
        else:
            del spoiled[at:]
    return bytes(spoiled)


def survives(path: Path) -> bool:
    """Opens and reads everything; True when it was sound after all."""
    try:
        with checkpoint.open(str(path)) as opened:
            for name in opened.tensors:
                opened.read(name)
            if opened.tokenizer is not None:
                with contextlib.suppress(TautError):
                    opened.tokenizer.decode(opened.tokenizer.encode("hello <s> é"))
    except TautError:
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_gguf(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    opened = [survives(write(tmp_path / "a.gguf", spoil(GGUF, GGUF_HEADER_LEN, rng))) for _ in range(50)]
    assert not all(opened)


@pytest.mark.parametrize("seed", range(8))
def test_safetensors(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    opened = [survives(folder(tmp_path, weights=spoil(WEIGHTS, WEIGHTS_HEADER_LEN, rng))) for _ in range(50)]
    assert not all(opened)


@pytest.mark.parametrize("seed", range(4))
def test_json(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        files = {"tokenizer__json": TOKENIZER_JSON, "config__json": CONFIG_JSON}
        name = rng.choice(sorted(files))
        files[name] = spoil(files[name], len(files[name]), rng)
        survives(folder(tmp_path, **files))


def test_every_cut_of_a_header_is_an_error(tmp_path: Path) -> None:
    for length in range(0, GGUF_HEADER_LEN, 11):
        assert not survives(write(tmp_path / "a.gguf", GGUF[:length]))
    for length in range(len(WEIGHTS) - 1, 0, -97):
        assert not survives(folder(tmp_path / "folder", weights=WEIGHTS[:length]))
