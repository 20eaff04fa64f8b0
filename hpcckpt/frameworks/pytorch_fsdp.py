"""PyTorch, fully sharded data parallel (FSDP2, `fully_shard`): each rank holds a part of every tensor.

Parameters and optimizer state are dealt out by rows (dimension 0); buffers stay whole on each rank.
A checkpoint is either each rank's own part (`sharded`, `torch_dcp`) or gathered on rank 0.
"""

from __future__ import annotations

from hpcckpt.frameworks._torch import TorchFramework, make_optimizer
from hpcckpt.frameworks._torch_group import equalise


class PyTorchFsdp(TorchFramework):
    packages = ("torch", "numpy", "mpi4py")
    holds_whole = False

    def distribute(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        equalise(self.module)
        mesh = init_device_mesh(self.device.type, (self.comm.size,))
        for layer in self.module.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.module, mesh=mesh)
        self.optimizer = make_optimizer(self.settings.optimizer, self.trained())
