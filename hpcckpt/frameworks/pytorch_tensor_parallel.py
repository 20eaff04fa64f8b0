"""PyTorch, one transformer over all ranks: attention by heads, dense pairs by columns and rows (DTensor).

All ranks together are one replica, so they train on the same batch. What is not cut (norms,
positions, the dense layers outside blocks) is on every rank, and law 3 holds for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.frameworks._torch import TorchFramework, make_optimizer
from hpcckpt.frameworks._torch_group import equalise
from hpcckpt.models.base import Dense, Model, Residual, SelfAttention, walk


class PyTorchTensorParallel(TorchFramework):
    packages = ("torch", "numpy", "mpi4py")
    holds_whole = False

    @classmethod
    def refuses(cls, model: type[Model]) -> str | None:
        return (
            None if _heads(model) else f"{model.name} has no attention whose heads the ranks could share out"
        )

    def start(self) -> None:
        reason = self.refuses(self.model_type)
        if reason is None and any(heads % self.comm.size for heads in _heads(self.model_type)):
            reason = f"{self.comm.size} ranks cannot share out {_heads(self.model_type)[0]} heads evenly"
        if reason:
            raise SpecError(f"pytorch_tensor_parallel: {reason}")
        super().start()

    def distribute(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        equalise(self.module)
        mesh = init_device_mesh(self.device.type, (self.comm.size,))
        parallelize_module(self.module, mesh, self._cuts())
        self.optimizer = make_optimizer(self.settings.optimizer, self.trained())

    def _cuts(self) -> dict[str, Any]:
        """How each layer is cut, by module name: what widens by columns, what narrows again by rows."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        found: dict[str, Any] = {}
        for place, (block, _) in enumerate(walk(self.model_type.layers(), self.model_type.input_shape)):
            if not isinstance(block, Residual):
                continue
            body = f"{place}.body"
            dense = [f"{body}.{i}" for i, layer in enumerate(block.body) if isinstance(layer, Dense)]
            for wide, narrow in zip(dense[::2], dense[1::2], strict=True):
                found |= {wide: ColwiseParallel(), narrow: RowwiseParallel()}
            for i, layer in enumerate(block.body):
                if isinstance(layer, SelfAttention):
                    found |= {f"{body}.{i}.{name}": ColwiseParallel() for name in ("query", "key", "value")}
                    found[f"{body}.{i}.out"] = RowwiseParallel()
        return found

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        return self.draw(0, 1, self.settings.batch_per_rank)


def _heads(model: type[Model]) -> list[int]:
    """Heads of each attention layer inside a residual block."""
    blocks = [layer for layer in model.layers() if isinstance(layer, Residual)]
    return [layer.heads for block in blocks for layer in block.body if isinstance(layer, SelfAttention)]
