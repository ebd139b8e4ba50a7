"""export: an artefact in a format that other programs load (export/ knows the formats)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from taut import checkpoint as checkpoints
from taut import models
from taut.checkpoint import Checkpoint
from taut.checkpoint.quantized import CONFIG_KEY, SHIFTED
from taut.compress.artefact import open_artefact
from taut.compress.export import Exported, Model, write
from taut.errors import UsageError
from taut.quant.algorithms import Weight


class _Weights(Mapping[str, Weight]):
    """The model's weights, read when they are asked for."""

    def __init__(self, checkpoint: Checkpoint, names: list[str]) -> None:
        self._checkpoint, self._names = checkpoint, names

    def __getitem__(self, name: str) -> Weight:
        found: Weight = self._checkpoint.read(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def export(artefact: str | Path, out: str | Path, to: str = "compressed-tensors") -> Exported:
    """Write the artefact in the folder `artefact` to `out`, which must not be there: a folder, or for gguf a file.

    Raises UsageError for what the format cannot hold, ModelError for a folder that is no artefact.
    """
    folder = open_artefact(artefact).path
    with checkpoints.open(str(folder), with_text=False) as checkpoint:
        if checkpoint.quantization is None:
            raise UsageError(
                f"{str(artefact)!r} states no quantization in its config.json; it is no artefact of `taut quantize`"
            )
        if checkpoint.quantization.smoothed:
            raise UsageError(
                "the artefact smooths what linears read of norms that the residual reads too, which no other format can say; quantize with "
                "--algorithm imatrix or rtn instead"
            )
        built = models.build(checkpoint)
        names = [name for name in checkpoint.tensors if name not in built.surplus and not name.endswith(SHIFTED)]
        config = {key: value for key, value in checkpoint.config.items() if key != CONFIG_KEY}
        schemes = {name: layer.scheme for name, layer in checkpoint.quantization.layers.items()}
        return write(Model(_Weights(checkpoint, names), schemes, config, folder), Path(out), to)
