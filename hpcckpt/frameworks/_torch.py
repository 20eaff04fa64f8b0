"""What PyTorch adapters share: a rank's training, and its state as named tensors and arrays.

An adapter only says how its ranks connect and how the model is distributed over them.

Determinism, `on`: deterministic algorithms (cuDNN's among them), none chosen by a benchmark, and cuBLAS
with fixed workspaces. `default` and `off` are PyTorch as it comes: on CPUs nothing of this changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from hpcckpt.comm import Comm
from hpcckpt.frameworks import _torch_group as group
from hpcckpt.frameworks._switches import CUBLAS
from hpcckpt.frameworks._torch_modules import build
from hpcckpt.frameworks._torch_sharding import fill, host, is_distributed, sharded_entry
from hpcckpt.frameworks.base import Entry, Framework, entry

LEARNING_RATE = 0.01

__all__ = ["TorchFramework", "build", "make_optimizer", "tensor_of"]


@dataclass(frozen=True)
class Item:
    """One tensor of a training state, as it lies on this rank."""

    name: str
    kind: str
    tensor: Any
    owner: int | None = None

    def entry(self) -> Entry:
        """Its values in host memory: this rank's part where it is distributed."""
        if is_distributed(self.tensor):
            return sharded_entry(self.name, self.kind, self.tensor)
        return entry(self.name, self.kind, host(self.tensor), self.owner)


class TorchFramework(Framework):
    """Subclasses define `distribute`, and `connect` where ranks talk through more than a process group."""

    can_freeze = True
    hides_gradients = None

    @classmethod
    def environment(cls, determinism: str) -> dict[str, str]:
        return dict(CUBLAS) if determinism == "on" else {}

    def connect(self) -> None:
        """Open what the ranks talk through."""
        group.open_group(self.comm, self.device)

    def distribute(self) -> None:
        """Make `self.module` equal on all ranks and distribute it; set `network` and `optimizer`."""
        raise NotImplementedError

    def start(self) -> None:
        import torch

        torch.set_num_threads(self.threads)
        if self.determinism == "on":
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        self.device = device_of(self.comm)
        self.connect()
        torch.manual_seed(self.settings.seed + self.comm.rank)  # differs: `distribute` must make it equal
        self.module = build(self.model_type).to(self.device)
        for name, parameter in self.module.named_parameters():
            if any(fnmatchcase(name, pattern) for pattern in self.settings.frozen):
                parameter.requires_grad_(False)
        self.network: Any = self.module
        self.optimizer: Any = None
        self.distribute()

    def trained(self) -> list[Any]:
        """The parameters that the optimizer changes."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def step(self) -> float:
        import torch
        from torch.nn.functional import cross_entropy

        images, labels = (torch.from_numpy(array).to(self.device) for array in self.batch())
        self.optimizer.zero_grad()
        loss = cross_entropy(self.network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.position += 1
        return float(loss.detach())

    def gradients(self) -> list[Entry]:
        named = ((name, parameter.grad) for name, parameter in self.module.named_parameters())
        return [Item(f"gradient.{name}", "gradient", grad).entry() for name, grad in named if grad is not None]

    def items(self) -> Iterator[Item]:
        """Every tensor of the state: what all ranks hold first, then what is this rank's alone."""
        import torch

        yield from (Item(f"model.{n}", "parameter", p.detach()) for n, p in self.module.named_parameters())
        yield from (Item(f"model.{n}", "buffer", b) for n, b in self.module.named_buffers())
        yield from optimizer_items(self.optimizer, self.module)
        yield Item("data.position", "data_position", torch.tensor(self.position, dtype=torch.int64))
        yield Item("rng.torch", "rng", torch.get_rng_state(), self.comm.rank)
        if self.device.type == "cuda":
            yield Item("rng.cuda", "rng", torch.cuda.get_rng_state(self.device), self.comm.rank)

    def state(self) -> list[Entry]:
        return [item.entry() for item in self.items()]

    def full_state(self, root: int | None = None) -> list[Entry]:
        found = []
        for item in self.items():
            part = item.entry()
            if not part.parts:
                found.append(part)
                continue
            array = host(item.tensor.full_tensor())  # one at a time: copies that nobody keeps go at once
            whole = entry(item.name, item.kind, array)
            found.append(whole if root in (None, self.comm.rank) else whole.bare())
        return found

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        import torch

        for name, live in (*self.module.named_parameters(), *self.module.named_buffers()):
            fill(live, arrays[f"model.{name}"])
        optimizer_load(self.optimizer, self.module, arrays)
        mine = arrays.get(f"rng.torch@{self.comm.rank:05d}")
        if mine is not None:
            torch.set_rng_state(tensor_of(mine))
        drawn = arrays.get(f"rng.cuda@{self.comm.rank:05d}")
        if drawn is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensor_of(drawn), self.device)
        self.position = int(arrays["data.position"])

    def checkpoint_group(self) -> Any:
        """A gloo process group for checkpoints alone, beside whatever averages the gradients."""
        return group.checkpoint_group(self.comm, self.device)

    def versions(self) -> dict[str, str]:
        import torch

        return {
            "torch": torch.__version__, "mpi": getattr(self.comm, "library", "none"), "device": self.device.type,
        }  # fmt: skip

    def close(self) -> None:
        group.close_group(self.comm)


def device_of(comm: Comm) -> Any:
    """A GPU of its own for every rank, pinned by its place on the host; the CPU where two would share one."""
    import torch

    places = comm.allgather((comm.host, torch.cuda.device_count()))
    hosts = [host_name for host_name, _ in places]
    if any(count < hosts.count(name) for name, count in places):
        return torch.device("cpu")
    local = hosts[: comm.rank].count(comm.host)
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def make_optimizer(name: str, parameters: Iterable[Any], rate: float = LEARNING_RATE) -> Any:
    """The torch optimizer of that name, one tensor at a time: fused updates refuse mixed kinds of tensors."""
    import torch

    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate, foreach=False)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if name == "momentum" else 0.0, foreach=False)


def optimizer_items(optimizer: Any, module: Any) -> Iterator[Item]:
    """Optimizer state by parameter name and slot, and each group's plain numbers."""
    import torch

    for name, parameter in module.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                yield Item(f"optimizer.{slot}.{name}", "optimizer", torch.as_tensor(value).detach())
    for index, options in enumerate(optimizer.param_groups):
        for key, value in options.items():
            if isinstance(value, int | float):
                number = torch.tensor(float(value), dtype=torch.float64)
                yield Item(f"optimizer.group{index}.{key}", "other", number)


def optimizer_load(optimizer: Any, module: Any, arrays: dict[str, np.ndarray]) -> None:
    """Inverse of `optimizer_items`; slots that the arrays lack are left empty."""
    optimizer.state.clear()
    for name, parameter in module.named_parameters():
        suffix = f".{name}"
        for key, array in arrays.items():
            if key.startswith("optimizer.") and key.endswith(suffix):
                slot = key[len("optimizer.") : -len(suffix)]
                if "." not in slot:
                    optimizer.state[parameter][slot] = _slot(array, parameter)
    for index, options in enumerate(optimizer.param_groups):
        for key, value in options.items():
            saved = arrays.get(f"optimizer.group{index}.{key}")
            if saved is not None and isinstance(value, int | float):
                options[key] = type(value)(saved)


def _slot(array: np.ndarray, parameter: Any) -> Any:
    """Lies as its parameter lies, unless it is a number such as Adam's step, which stays on the host."""
    import torch

    if array.shape != tuple(parameter.shape):
        return tensor_of(array).clone()
    slot = torch.zeros_like(parameter, requires_grad=False)
    fill(slot, array)
    return slot


def tensor_of(array: np.ndarray) -> Any:
    """A torch tensor over the array's memory, or over a copy where that memory is read-only."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())
