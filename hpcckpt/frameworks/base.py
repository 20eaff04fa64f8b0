"""The seam between a framework and everything that saves its state: `Entry` and `Framework`.

A state is a list of named arrays in host memory. Replicated entries are equal on all ranks (or, as
batch-norm statistics, taken from rank 0 as users do); an entry with an owner is that rank's alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hpcckpt.comm import Comm
from hpcckpt.data import Dataset
from hpcckpt.errors import SpecError
from hpcckpt.experiment import Settings
from hpcckpt.models.base import Model


@dataclass(frozen=True)
class Part:
    """The box of a global array that one rank holds: where it begins and how long it is, by dimension."""

    begin: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def count(self) -> int:
        return int(np.prod(self.lengths, dtype=np.int64))

    def offset(self, shape: tuple[int, ...]) -> int:
        """Where its first element lies in the flattened array of `shape`."""
        place = 0
        for begin, length in zip(self.begin, shape, strict=True):
            place = place * length + begin
        return place

    def contiguous(self, shape: tuple[int, ...]) -> bool:
        """Whether it is one stretch of the flattened array: whole in every dimension but the first."""
        return self.lengths[1:] == shape[1:]


@dataclass(frozen=True)
class Entry:
    """One named array of a training state.

    `shape` is the global shape; `data` is this rank's part, a C-contiguous array in host memory
    (None in a plan, which needs no data); `offset` is where that part begins in the flattened
    global array, in elements. `parts` says, by rank, which part each rank holds: every rank knows
    the whole layout, so a plan is pure; empty where each rank holds the whole array.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray | None = None
    offset: int = 0
    owner: int | None = None
    replica_group: str = "all"
    parts: tuple[Part, ...] = ()

    @property
    def key(self) -> str:
        """Name in a file: entries that only one rank holds carry its number."""
        return self.name if self.owner is None else f"{self.name}@{self.owner:05d}"

    @property
    def nbytes(self) -> int:
        """Bytes of the whole global array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def bare(self) -> Entry:
        """The same without its data."""
        return replace(self, data=None)


def entry(name: str, kind: str, data: np.ndarray, owner: int | None = None) -> Entry:
    """The entry of a whole array that this rank holds."""
    data = np.ascontiguousarray(data).reshape(data.shape)  # ascontiguousarray makes scalars 1-d
    group = "all" if owner is None else f"rank{owner:05d}"
    return Entry(name, kind, data.shape, data.dtype.name, data, owner=owner, replica_group=group)


def of_all_ranks(entries: list[Entry], ranks: int) -> list[Entry]:
    """The whole job's state, without data, from one rank's entries: owned ones exist once per rank."""
    result = [e.bare() for e in entries if e.owner is None]
    for local in (e.bare() for e in entries if e.owner is not None):
        result += [replace(local, owner=r, replica_group=f"rank{r:05d}") for r in range(ranks)]
    return result


class Framework:
    """One rank's training: a model, an optimizer, and steps whose gradients are averaged over all ranks."""

    packages: ClassVar[tuple[str, ...]]
    """Installed packages whose versions its numbers depend on: part of a run's identity."""
    optimizer_slots: ClassVar[dict[str, int]] = {"sgd": 0, "momentum": 1, "adam": 2}
    """Arrays of a parameter's size that each optimizer keeps."""
    holds_whole: ClassVar[bool] = True
    """Every rank holds the whole model; False: its entries have `parts`."""
    compiles: ClassVar[bool] = False
    """Its first step costs seconds: who tries many checkpoints in one process keeps one instance for them."""
    elastic: ClassVar[bool] = True
    """Its state can be loaded on another number of ranks."""
    reorders_sums: ClassVar[str | None] = None
    """Why, on more than two ranks, the first step after a restart may round otherwise; None: it does not."""
    can_freeze: ClassVar[bool] = False
    """It can leave parameters untrained (`settings.frozen`)."""
    hides_gradients: ClassVar[str | None] = "the adapter does not show them"
    """Why the averaged gradients of the last step cannot be seen; None: `gradients` shows them."""
    determinism: str = "default"
    """off: as the libraries come; on: all switches that make training repeat; default: the adapter's own choice.

    Set before `start`. What the switches are stands in each adapter's docstring, and nowhere else."""

    def __init__(self, model: type[Model], settings: Settings, comm: Comm, data: Dataset, threads: int) -> None:
        if settings.frozen and not self.can_freeze:
            raise SpecError(f"settings.frozen: {type(self).__name__} trains all parameters; leave it out")
        self.model_type = model
        self.settings = settings
        self.comm = comm
        self.data = data
        self.threads = threads
        self.position = 0
        """Number of steps done: where the data order goes on."""
        self.last_ids = np.empty(0, np.int64)
        """Samples that this rank trained on in its last step."""

    def start(self) -> None:
        """Build model and optimizer; afterwards all ranks hold equal parameters."""
        raise NotImplementedError

    def step(self) -> float:
        """Train on this rank's next batch, with averaged gradients; the loss before the update."""
        raise NotImplementedError

    def state(self) -> list[Entry]:
        """Everything that a restart needs, in host memory; may share memory with the live state."""
        raise NotImplementedError

    def full_state(self, root: int | None = None) -> list[Entry]:
        """The state with every shared entry whole, whatever part of it this rank holds; a collective.

        With `root`, only that rank keeps what it gathers; the others' gathered entries hold no data.
        """
        return self.state()

    def job_entries(self) -> list[Entry]:
        """The whole job's state, without data. Where ranks own entries that differ, a collective."""
        return of_all_ranks(self.state(), self.comm.size)

    def gradients(self) -> list[Entry]:
        """The averaged gradients of the last step, of kind `gradient`; what this rank holds of them."""
        return []

    def reorder(self) -> None:
        """From now on add the ranks' gradients up in another order: a planted fault."""
        raise SpecError(f"faults: {type(self).__name__} cannot sum gradients in another order; numpy_toy can")

    @classmethod
    def environment(cls, determinism: str) -> dict[str, str]:
        """Variables that must be set before MPI starts and any library is imported. Pure."""
        return {}

    @classmethod
    def refuses(cls, model: type[Model]) -> str | None:
        """The reason why it cannot train this model, None where it can. Pure."""
        return None

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over a saved state: arrays by entry key. Keys of other owners are passed over."""
        raise NotImplementedError

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that train."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what `start` took."""

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """This rank's batch at the current position."""
        size = self.settings.batch_per_rank
        if self.settings.scaling == "strong":
            size = max(1, size // self.comm.size)
        return self.draw(self.comm.rank, self.comm.size, size)

    def draw(self, rank: int, ranks: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The batch of one of so many ranks at the current position; remembers its samples."""
        self.last_ids = self.data.sample_ids(self.position, rank, ranks, size, self.settings.seed)
        return self.data.take(self.last_ids)

    def parameter_count(self) -> int:
        return sum(int(np.prod(e.shape)) for e in self.state() if e.kind == "parameter")


Base = Framework
