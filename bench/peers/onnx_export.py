"""An encoder as ONNX, through torch: what ONNX Runtime and OpenVINO start from. Runs in the peer's interpreter."""

from __future__ import annotations

from pathlib import Path

from common import Spec


def export(spec: Spec, path: Path) -> None:
    """Token ids and mask, (batch, length) each, to the last hidden states; eager attention, which optimizers recognise."""
    import torch
    from transformers import AutoModel

    inner = AutoModel.from_pretrained(spec["model"], attn_implementation="eager", dtype=torch.float32).eval()

    class Plain(torch.nn.Module):  # type: ignore[misc]  # torch is not there where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.randint(10, 100, (2, 16))
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=spec["length"])}
    shapes = {"input_ids": dims, "attention_mask": dims}
    names = ["input_ids", "attention_mask"]
    program = torch.onnx.export(
        Plain(), (ids, torch.ones_like(ids)), dynamo=True, input_names=names, output_names=["hidden"],
        dynamic_shapes=shapes, opset_version=18,
    )  # fmt: skip
    program.save(str(path))
