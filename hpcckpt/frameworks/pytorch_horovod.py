"""PyTorch, data parallel by Horovod over MPI.

Order that matters: wrap the optimizer first, then load or broadcast. `DistributedOptimizer` makes a
new optimizer, and state loaded before it is lost without a word.
"""

from __future__ import annotations

import numpy as np

from hpcckpt.frameworks._torch import build, make_optimizer, optimizer_entries, optimizer_load, tensor_of
from hpcckpt.frameworks.base import Entry, Framework, entry

LEARNING_RATE = 0.01


class PyTorchHorovod(Framework):
    def start(self) -> None:
        import horovod.torch as hvd
        import torch

        torch.set_num_threads(self.threads)
        torch.manual_seed(self.settings.seed + self.comm.rank)  # differs per rank: the broadcast must make it equal
        hvd.init()
        self.hvd = hvd
        self.module = build(self.model_type)
        optimizer = make_optimizer(self.settings.optimizer, self.module.parameters(), LEARNING_RATE)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self.module.named_parameters(), op=hvd.Average
        )
        hvd.broadcast_parameters(self.module.state_dict(), root_rank=0)

    def step(self) -> float:
        import torch
        from torch.nn.functional import cross_entropy

        images, labels = self.batch()
        self.optimizer.zero_grad()
        loss = cross_entropy(self.module(torch.from_numpy(images)), torch.from_numpy(labels))
        loss.backward()
        self.optimizer.step()
        self.position += 1
        return float(loss.detach())

    def state(self) -> list[Entry]:
        import torch

        found = [entry(f"model.{n}", "parameter", p.detach().numpy()) for n, p in self.module.named_parameters()]
        found += [entry(f"model.{n}", "buffer", b.numpy()) for n, b in self.module.named_buffers()]
        found += optimizer_entries(self.optimizer, self.module)
        found.append(entry("rng.torch", "rng", torch.get_rng_state().numpy(), owner=self.comm.rank))
        found.append(entry("data.position", "data_position", np.asarray(self.position, dtype=np.int64)))
        return found

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        import torch

        with torch.no_grad():
            for name, live in (*self.module.named_parameters(), *self.module.named_buffers()):
                live.copy_(tensor_of(arrays[f"model.{name}"]))
        optimizer_load(self.optimizer, self.module, arrays)
        mine = arrays.get(f"rng.torch@{self.comm.rank:05d}")
        if mine is not None:
            torch.set_rng_state(tensor_of(mine))
        self.position = int(arrays["data.position"])

    def versions(self) -> dict[str, str]:
        import horovod
        import torch

        return {"torch": torch.__version__, "horovod": horovod.__version__, "mpi": getattr(self.comm, "library", "none")}

    def close(self) -> None:
        self.hvd.shutdown()
