"""Chainer, data parallel by ChainerMN: the `naive` communicator on CPUs, `pure_nccl` where CuPy finds GPUs.

ChainerMN talks over MPI's COMM_WORLD by itself; the suite's own communication goes over a duplicate
of it, made first, with the thread level that the suite asked for.

Two habits of ChainerMN that a measurement must know:
- The first `update` of a multi-node optimizer only broadcasts the parameters and drops its batch,
  after a resume as well. The adapter broadcasts at the start and tells the optimizer that it has seen
  the model, so that no step is lost.
- Batch-norm statistics are each rank's own; nothing averages them unless a script asks for it.
"""

from __future__ import annotations

from typing import Any

from hpcckpt.frameworks._chainer import ChainerFramework, make_optimizer
from hpcckpt.frameworks._chainer_layers import build


class ChainerChainerMN(ChainerFramework):
    packages = ("chainer", "numpy", "mpi4py", "h5py")

    def start(self) -> None:
        super().start()
        self.communicator.bcast_data(self.model)
        self.optimizer.is_changed(self.model)  # remembers the model's parameters: the next update is a step

    def make_model(self) -> Any:
        return build(self.model_type.layers(), self.model_type.input_shape)

    def make_optimizer(self) -> Any:
        actual = make_optimizer(self.settings.optimizer)
        return self.chainermn.create_multi_node_optimizer(actual, self.communicator)

    def loss(self, images: Any, labels: Any) -> Any:
        found = self.chainer.functions.softmax_cross_entropy(self.model(images), labels)
        self.last_loss = float(found.array)
        return found
