"""PyTorch, data parallel by Horovod over MPI.

Order that matters: wrap the optimizer first, then load or broadcast. `DistributedOptimizer` makes a
new optimizer, and state loaded before it is lost without a word.

Determinism, `on`: PyTorch's own switches (`_torch`); each gradient is summed by itself, by one allreduce
algorithm for all sizes. Otherwise Horovod fuses what is ready together, and MPI chooses by size.
"""

from __future__ import annotations

from hpcckpt.frameworks._switches import HOROVOD_SUMS, MPI_SUMS
from hpcckpt.frameworks._torch import TorchFramework, make_optimizer


class PyTorchHorovod(TorchFramework):
    packages = ("torch", "horovod", "numpy", "mpi4py")

    @classmethod
    def environment(cls, determinism: str) -> dict[str, str]:
        return super().environment(determinism) | (MPI_SUMS | HOROVOD_SUMS if determinism == "on" else {})

    def connect(self) -> None:
        import horovod.torch as hvd

        hvd.init()
        self.hvd = hvd

    def distribute(self) -> None:
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        optimizer = make_optimizer(self.settings.optimizer, self.trained())
        self.optimizer = self.hvd.DistributedOptimizer(optimizer, named_parameters=named, op=self.hvd.Average)
        self.hvd.broadcast_parameters(self.module.state_dict(), root_rank=0)

    def versions(self) -> dict[str, str]:
        import horovod

        return {**super().versions(), "horovod": horovod.__version__}

    def close(self) -> None:
        self.hvd.shutdown()
        super().close()
