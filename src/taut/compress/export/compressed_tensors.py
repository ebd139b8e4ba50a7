"""compressed-tensors: a Hugging Face folder whose config.json says how each linear's numbers look (vLLM, llm-compressor, transformers).

    int-quantized   weight (N, K) int8, weight_scale (N, 1) float32; inputs are quantized per token at run time
    pack-quantized  weight_packed (N, K · bits / 32) int32: code + 2**(bits - 1), the first code in the lowest bits; weight_scale (N, 1)
                    or (N, K / group) float32; weight_shape (2,) int64
    naive-quantized weight int8, weight_scale, and float inputs

Format: github.com/vllm-project/compressed-tensors, compressors/pack_quantized and naive_quantized. Knows arrays and the config, no model.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.compress.export import safetensors_file
from taut.compress.export.model import Exported, Model
from taut.compress.export.safetensors_file import Spec
from taut.errors import UsageError
from taut.quant.algorithms import Weight, dequantize
from taut.quant.algorithms.rtn import is_symmetric
from taut.quant.schemes import int4, int8

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # vLLM makes one linear of them: one format
FLOAT_ROWS = ("embed_tokens", "lm_head", "word_embeddings")  # read as floats everywhere
_TEXTS = (".json", ".jinja", ".txt", ".model")


@dataclass(frozen=True)
class Layout:
    """How a weight's numbers lie in the file. `group` 0: a scale for each row."""

    format: str
    bits: int
    group: int
    has_int_inputs: bool

    def arguments(self) -> dict[str, Any]:
        """The group's entry in config.json, but for its targets."""
        common = {"type": "int", "symmetric": True, "actorder": None, "block_structure": None, "observer_kwargs": {}}
        weights = {
            **common,
            "num_bits": self.bits,
            "strategy": "group" if self.group else "channel",
            "group_size": self.group or None,
            "dynamic": False,
            "observer": "minmax",
        }
        inputs = {**common, "num_bits": 8, "strategy": "token", "group_size": None, "dynamic": True, "observer": None}
        return {
            "format": self.format,
            "weights": weights,
            "input_activations": inputs if self.has_int_inputs else None,
            "output_activations": None,
        }


def pack(codes: NDArray[np.int8], bits: int) -> NDArray[np.int32]:
    """(N, K) codes in [-2**(bits - 1), 2**(bits - 1)) as (N, K · bits / 32, rounded up); the end of a row is filled with zero bits."""
    per_word = 32 // bits
    n, k = codes.shape
    unsigned = np.zeros((n, -(-k // per_word) * per_word), np.uint32)
    unsigned[:, :k] = codes.astype(np.int32) + (1 << (bits - 1))
    words = unsigned.reshape(n, -1, per_word) << (np.arange(per_word, dtype=np.uint32) * np.uint32(bits))
    packed: NDArray[np.int32] = np.bitwise_or.reduce(words, axis=2).view(np.int32)
    return packed


def write(model: Model, out: Path, *, naive: bool = False) -> Exported:
    """The folder `out`: model.safetensors, config.json with its quantization_config, and the text files of model.folder."""
    layouts, widened = _layouts(model, naive)
    specs: dict[str, Spec] = {}
    readers: dict[str, tuple[str, str]] = {}  # tensor → (weight, part)
    for name, weight in model.weights.items():
        for part, spec in _specs(name, weight, layouts.get(name)).items():
            specs[part], readers[part] = spec, (name, part)
    last: dict[str, dict[str, NDArray[Any]]] = {}

    def read(tensor: str) -> NDArray[Any]:
        name, part = readers[tensor]
        if name not in last:
            last.clear()
            last[name] = _tensors(name, model.weights[name], layouts.get(name))
        return last[name][part]

    building = out.with_name(out.name + ".partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        _copy_texts(model.folder, building)
        safetensors_file.write(building / "model.safetensors", specs, read)
        config = dict(model.config)
        if layouts:  # else it is a plain model, which every reader takes
            config["quantization_config"] = quantization_config(model, layouts)
        if any(dtype == np.float32 for name, (dtype, _) in specs.items() if not name.endswith("_scale")):
            config.update(dtype="float32", torch_dtype="float32")
        (building / "config.json").write_text(json.dumps(config, indent=2, default=_plain) + "\n", encoding="utf-8")
        building.rename(out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    floats = Counter(_shown(weight) for name, weight in model.weights.items() if name not in layouts)
    return Exported(out, dict(Counter(layout.format for layout in layouts.values()) or floats), widened)


def quantization_config(model: Model, layouts: dict[str, Layout]) -> dict[str, Any]:
    """Of config.json. One kind of linear: all that are not ignored; several: each group names its linears."""
    kinds = list(dict.fromkeys(layouts.values()))
    groups = {}
    for index, kind in enumerate(kinds):
        names = [_module(name) for name, layout in layouts.items() if layout == kind]
        groups[f"group_{index}"] = {"targets": ["Linear"] if len(kinds) == 1 else names, **kind.arguments()}
    formats = {kind.format for kind in kinds}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": _ignored(model, layouts),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _ignored(model: Model, layouts: dict[str, Layout]) -> list[str]:
    """Linears that stay floats; lm_head always, which a tied model has without a tensor."""
    floats = [
        _module(name)
        for name, weight in model.weights.items()
        if name.endswith(".weight") and name not in layouts and len(_shape(weight)) == 2 and "embed" not in name
    ]
    return floats if "lm_head" in floats else [*floats, "lm_head"]


def _layouts(model: Model, naive: bool) -> tuple[dict[str, Layout], tuple[str, ...]]:
    """(the layout of every weight that stays quantized, the quantized ones that are widened). Collects all problems first."""
    layouts: dict[str, Layout] = {}
    widened, problems = [], []
    for name, weight in model.weights.items():
        if isinstance(weight, np.ndarray):
            continue
        if any(part in name for part in FLOAT_ROWS):
            widened.append(name)
        elif isinstance(weight, int8.Quantized):
            layouts[name] = _int8_layout(model.schemes.get(name, "int8"), weight, naive)
        elif is_symmetric(weight):
            layouts[name] = Layout("pack-quantized", 4, weight.group, False)
        else:
            problems.append(name)
    if problems:
        raise UsageError(
            f"compressed-tensors cannot hold asymmetric int4 ({problems[0]} and {len(problems) - 1} others): its zero points are integers, "
            "taut's minima are not; quantize with symmetric int4, or export to gguf"
        )
    _check_fused(layouts, model.weights)
    return layouts, tuple(widened)


def _int8_layout(scheme: str, weight: int8.Quantized, naive: bool) -> Layout:
    if scheme == "w8a16" or weight.group:
        return Layout("naive-quantized" if naive else "pack-quantized", 8, weight.group, False)
    return Layout("int-quantized", 8, 0, True)


def _check_fused(layouts: dict[str, Layout], names: Iterable[str]) -> None:
    known = set(names)
    for name in known:
        for parts in FUSED:
            if f".{parts[0]}.weight" not in name:
                continue
            siblings = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
            if len({layouts.get(each) for each in siblings if each in known}) > 1:
                raise UsageError(
                    f"{', '.join(siblings)} have different precisions, but vLLM makes one linear of them; pin them alike and quantize again"
                )


def _specs(name: str, weight: Weight, layout: Layout | None) -> dict[str, Spec]:
    """The tensors that _tensors makes, without making them."""
    n_k = _shape(weight)
    if layout is None:
        return {name: (weight.dtype if isinstance(weight, np.ndarray) else np.dtype(np.float32), n_k)}
    n, k = n_k
    stem = name.removesuffix(".weight")
    scale = (np.dtype(np.float32), (n, k // layout.group if layout.group else 1))
    if layout.format != "pack-quantized":
        return {f"{stem}.weight": (np.dtype(np.int8), (n, k)), f"{stem}.weight_scale": scale}
    return {
        f"{stem}.weight_packed": (np.dtype(np.int32), (n, -(-k * layout.bits // 32))),
        f"{stem}.weight_scale": scale,
        f"{stem}.weight_shape": (np.dtype(np.int64), (2,)),
    }


def _tensors(name: str, weight: Weight, layout: Layout | None) -> dict[str, NDArray[Any]]:
    if layout is None:
        return {name: weight if isinstance(weight, np.ndarray) else dequantize(weight)}
    assert not isinstance(weight, np.ndarray)
    stem = name.removesuffix(".weight")
    if isinstance(weight, int4.Quantized):
        codes = (weight.u.astype(np.int16) - 8).astype(np.int8)
        scale = weight.scale.astype(np.float32) * weight.column[:, None]  # a power of two: exact
    else:
        codes, scale = weight.q, weight.scale.reshape(len(weight.q), -1)
    if layout.format != "pack-quantized":
        return {f"{stem}.weight": codes, f"{stem}.weight_scale": scale}
    shape = np.array(codes.shape, np.int64)
    return {f"{stem}.weight_packed": pack(codes, layout.bits), f"{stem}.weight_scale": scale, f"{stem}.weight_shape": shape}


def _shown(weight: Weight) -> str:
    return str(weight.dtype) if isinstance(weight, np.ndarray) else "float32"


def _shape(weight: Weight) -> tuple[int, ...]:
    if isinstance(weight, np.ndarray):
        return weight.shape
    return weight.q.shape if isinstance(weight, int8.Quantized) else weight.u.shape


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _copy_texts(folder: Path | None, out: Path) -> None:
    """Every text file but config.json and weights' indices; those of sentence transformers' modules are in folders."""
    for path in sorted(folder.rglob("*")) if folder is not None else ():
        name = path.relative_to(folder).as_posix() if folder is not None else ""
        if path.suffix in _TEXTS and name not in ("config.json", "receipt.json") and not name.endswith(".index.json"):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)


def _plain(value: Any) -> Any:
    """numpy's numbers in a config."""
    return value.item() if isinstance(value, np.generic) else str(value)
