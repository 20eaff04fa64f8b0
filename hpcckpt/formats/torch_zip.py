"""torch.save's own format since 1.6: a zip archive, stored uncompressed, with a pickle of the structure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Format


class TorchZip(Format):
    suffix = ".pt"
    frameworks = frozenset({"pytorch_horovod", "pytorch_ddp", "pytorch_fsdp"})
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written once, front to back"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        import torch

        torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        import torch

        return {key: tensor.numpy() for key, tensor in torch.load(path, weights_only=True).items()}
