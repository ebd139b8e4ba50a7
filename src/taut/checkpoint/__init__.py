"""Model files to arrays, a tokenizer and a chat template. Hostile input is an error; nothing is allocated on its word.

`open(ref)` is the stage's one verb.
"""

from __future__ import annotations

from taut.checkpoint.chat_template import ChatTemplate
from taut.checkpoint.config_json import rope_parameters
from taut.checkpoint.pooling import Pooling
from taut.checkpoint.reader import ALIASES, Checkpoint, folder_of, open
from taut.checkpoint.stream import TokenStream
from taut.checkpoint.tensors import TensorInfo
from taut.checkpoint.tokenizer import Tokenizer

__all__ = [
    "ALIASES",
    "ChatTemplate",
    "Checkpoint",
    "Pooling",
    "TensorInfo",
    "TokenStream",
    "Tokenizer",
    "folder_of",
    "open",
    "rope_parameters",
]
