"""OpenVINO's runtime on an encoder, hinted to bf16 where the processor has it; `int8` quantized by NNCF on real text."""

from __future__ import annotations

import numpy as np
from common import Loading, Result, Spec, converted, pooled, timed

NEEDS = dict.fromkeys(("encoder", "sentences"), ("openvino", "nncf", "onnx", "onnxscript", "torch", "transformers"))
VARIANTS = dict.fromkeys(("encoder", "sentences"), ("bf16", "int8"))


def prepare(spec: Spec) -> None:
    out = converted(spec, f"openvino-{spec['variant']}.xml")
    if out.exists():
        return
    import openvino as ov
    from onnx_export import export

    plain = converted(spec, "openvino-plain.onnx")
    export(spec, plain)
    model = ov.Core().read_model(str(plain))
    if spec["variant"] == "int8":
        import nncf

        texts = [np.asarray([one], np.int64) for one in spec["calibration_ids"]]
        sample = nncf.Dataset([{"input_ids": one, "attention_mask": np.ones_like(one)} for one in texts])
        model = nncf.quantize(model, sample, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts))
    ov.save_model(model, str(out), compress_to_fp16=False)
    del model
    for file in (plain, plain.with_name(plain.name + ".data")):
        file.unlink(missing_ok=True)


def measure(spec: Spec) -> Result:
    import openvino as ov

    loading = Loading()
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": spec["threads"],
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.Core().compile_model(str(converted(spec, f"openvino-{spec['variant']}.xml")), "CPU", settings)
    rest = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    head = loading.done(f"OpenVINO {ov.__version__.partition('-')[0]} (the rest in {rest})")

    def embed(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return pooled(spec, compiled({"input_ids": ids, "attention_mask": mask})[0], mask)

    return {**head, **timed(spec, embed)}
