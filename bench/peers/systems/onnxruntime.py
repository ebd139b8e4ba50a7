"""ONNX Runtime: exported through torch, fused by its transformer optimizer, then dynamic int8 with a scale per channel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from common import Loading, Result, Spec, converted, pooled, timed

NEEDS = dict.fromkeys(("encoder", "sentences"), ("onnxruntime", "onnx", "onnxscript", "torch", "transformers"))
VARIANTS = dict.fromkeys(("encoder", "sentences"), ("int8",))


def prepare(spec: Spec) -> None:
    out = converted(spec, "onnxruntime-int8.onnx")
    if out.exists():
        return
    from onnx_export import export
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    plain, fused = converted(spec, "plain.onnx"), converted(spec, "fused.onnx")
    export(spec, plain)
    config = json.loads((Path(spec["model"]) / "config.json").read_text(encoding="utf-8"))
    heads, width = config["num_attention_heads"], config["hidden_size"]
    optimizer.optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=width).save_model_to_file(str(fused))
    quantize_dynamic(fused, out, weight_type=QuantType.QInt8, per_channel=True)
    for file in (plain, fused, plain.with_name("plain.onnx.data"), fused.with_name("fused.onnx.data")):
        file.unlink(missing_ok=True)


def measure(spec: Spec) -> Result:
    import onnxruntime

    loading = Loading()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = spec["threads"]
    path = str(converted(spec, "onnxruntime-int8.onnx"))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    head = loading.done(f"ONNX Runtime {onnxruntime.__version__}")

    def embed(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        (hidden,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        return pooled(spec, hidden, mask)

    return {**head, **timed(spec, embed)}
