"""Chainer, model parallel by ChainerMN's MultiNodeChainList: each rank holds some of the layers.

The layers are cut into as many stages as there are ranks, in order and about equal in parameters. All
ranks take the same batch: its images enter at the first rank, activations go from rank to rank, the
last one knows the loss, and the gradients come back the same way. No value is held twice, so all
entries have an owner, and a restore needs the same number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.frameworks._chainer import ChainerFramework
from hpcckpt.frameworks._chainer_layers import build
from hpcckpt.frameworks.base import Entry
from hpcckpt.models.base import Layer, Shape, walk


class ChainerModelParallel(ChainerFramework):
    packages = ("chainer", "numpy", "mpi4py", "h5py")
    holds_whole = False
    elastic = False
    owns = True

    def make_model(self) -> Any:
        cut = stages(self.model_type.layers(), self.model_type.input_shape, self.comm.size)
        layers, shape = cut[self.comm.rank]
        before, behind = self.comm.rank - 1, self.comm.rank + 1
        chain = self.chainermn.MultiNodeChainList(self.communicator)
        chain.add_link(
            build(layers, shape),
            rank_in=before if before >= 0 else None,
            rank_out=behind if behind < self.comm.size else None,
        )
        return chain

    @property
    def _last(self) -> int:
        return self.comm.size - 1

    def loss(self, images: Any, labels: Any) -> Any:
        """On all ranks but the last it is a stand-in, whose backward waits for the next rank's gradients."""
        found = self.model(images)
        if self.comm.rank == self._last:
            found = self.chainer.functions.softmax_cross_entropy(found, labels)
            self.last_loss = float(found.array)
        return found

    def step(self) -> float:
        super().step()
        return float(self.comm.bcast(self.last_loss, root=self._last))

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        return self.draw(0, 1, self.settings.batch_per_rank)

    def job_entries(self) -> list[Entry]:
        own = [entry.bare() for entry in self.state()]
        return [entry for part in self.comm.allgather(own) for entry in part]

    def parameter_count(self) -> int:
        """Of the whole model; a collective."""
        return sum(self.comm.allgather(super().parameter_count()))


def stages(layers: Sequence[Layer], shape: Shape, count: int) -> list[tuple[tuple[Layer, ...], Shape]]:
    """The layers in `count` runs of about equal parameters, each with the shape of what enters it."""
    sizes = [(layer, at, layer.parameters(at)) for layer, at in walk(tuple(layers), shape)]
    heavy = [index for index, (_, _, size) in enumerate(sizes) if size]
    if len(heavy) < count:
        raise SpecError(f"{count} ranks cannot share {len(heavy)} layers with parameters; start fewer ranks")
    cuts = [0, *_cuts([sizes[index][2] for index in heavy], heavy, count), len(sizes)]
    return [
        (tuple(layer for layer, _, _ in sizes[begin:end]), sizes[begin][1])
        for begin, end in pairwise(cuts)
    ]


def _cuts(parameters: list[int], places: list[int], count: int) -> list[int]:
    """Where the second and later stages begin: at layers with parameters, at least one in each stage."""
    total, done = sum(parameters), 0
    cuts: list[int] = []
    for index, size in enumerate(parameters):
        left, wanted = len(parameters) - index, count - 1 - len(cuts)
        due = done + size / 2 > total * (len(cuts) + 1) / count
        if wanted and index and (due or left == wanted):
            cuts.append(places[index])
        done += size
    return cuts
