"""Quantized models as other programs read them: compressed-tensors (vLLM, transformers) and GGUF (llama.cpp).

What becomes of a linear's weight; what is not in the table is refused with a reason, never turned into something else:

    scheme                    compressed-tensors                            GGUF
    int8                      int-quantized: W8A8, dynamic per token        Q8_0, the row's scale in every block
    int8-g64                  pack-quantized: 8 bits in groups, inputs      Q8_0
                              stay floats there
    w8a16                     pack-quantized (or naive-quantized): 8 bits   Q8_0
    int8-static               refused: nobody else has its fallback         refused
    int4-g*, symmetric        pack-quantized: 4 bits, inputs stay floats    Q4_0, the group's scale in every block of 32
    int4-g*, asymmetric       refused: zero points are integers there       Q4_1, likewise
    fp32, fp16, bf16          as they are                                   F32, F16, BF16

Codes are kept. GGUF's scales are float16: int8's are rounded to that (int4's are float16 already). A quantized embedding or head
is widened to float32 for compressed-tensors, whose readers expect floats there; `Exported.widened` names them.
"""

from __future__ import annotations

from pathlib import Path

from taut.compress.export.model import Exported, Model
from taut.compress.workplace import check_free, failures_told
from taut.errors import UsageError

TARGETS = ("compressed-tensors", "gguf")

__all__ = ["TARGETS", "Exported", "Model", "write"]


def write(model: Model, out: Path, to: str = "compressed-tensors", *, naive: bool = False) -> Exported:
    """Writes `model` to `out`: a new folder, or for gguf a new file. `naive`: w8a16 and int8 in groups as plain int8 tensors.

    Raises UsageError for what the target cannot hold; nothing is left behind then.
    """
    if to not in TARGETS:
        raise UsageError(f"cannot export to {to!r}; accepted are {', '.join(TARGETS)}")
    check_free(out)
    if static := sorted(name for name, scheme in model.schemes.items() if scheme == "int8-static"):
        raise UsageError(
            f"int8-static ({static[0]} and {len(static) - 1} others) cannot be exported: its inputs fall back to their own scale where they "
            "leave the calibrated range, which no other program does; quantize with --scheme int8 instead"
        )
    if to == "gguf":
        from taut.compress.export import gguf_file  # and with it the gguf package

        with failures_told(out, "nothing is left of it"):
            return gguf_file.write(model, out)
    from taut.compress.export import compressed_tensors

    with failures_told(out, "nothing is left of it"):
        return compressed_tensors.write(model, out, naive=naive)
