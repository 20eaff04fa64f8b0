"""PyTorch, data parallel by DistributedDataParallel: gloo on CPUs, NCCL on GPUs.

MPI only starts the ranks and passes the rendezvous on.

A restart is not bit-equal on three ranks or more: DDP lays its gradient buckets out anew after its
first backward pass, a restarted one has not done so yet, and a value's place in a bucket decides in
which order the ranks' gradients are summed. (Measured on four: all tensors differ after the first
step; none does with `find_unused_parameters=True`, which keeps the buckets as they are.)

Determinism, `on`: PyTorch's own switches (`_torch`), and `find_unused_parameters`. Gloo's sums have one order.
"""

from __future__ import annotations

from hpcckpt.frameworks._torch import TorchFramework, make_optimizer


class PyTorchDdp(TorchFramework):
    packages = ("torch", "numpy", "mpi4py")
    reorders_sums = "DDP lays its gradient buckets out anew after its first step, and a restarted one has not yet"

    def distribute(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        keeps = self.determinism == "on"
        # Takes rank 0's values over.
        self.network = DistributedDataParallel(self.module, find_unused_parameters=keeps)
        self.optimizer = make_optimizer(self.settings.optimizer, self.trained())
