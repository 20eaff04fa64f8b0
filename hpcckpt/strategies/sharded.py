"""The replicated state is cut by bytes over all ranks: each value is written once, by somebody.

Cuts go through tensors where they must, so the shares are equal whatever the tensors' sizes. A
restore puts them together again, on any number of ranks. Where the ranks hold parts of the state
(FSDP, tensor parallelism), each rank writes its own part: nothing moves between ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies._parts import PartsStrategy
from hpcckpt.strategies.base import Piece, Plan, Topology, part, whole


class Sharded(PartsStrategy):
    content = "disjoint"
    slices = True

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        everything = list(entries)
        shared = [entry for entry in everything if entry.owner is None and not entry.parts]
        share = -(-sum(entry.nbytes for entry in shared) // topology.ranks)
        plan: Plan = {rank: [] for rank in range(topology.ranks)}
        position = 0
        for entry in shared:
            for rank, piece in _cuts(entry, position, max(1, share)):
                plan[min(rank, topology.ranks - 1)].append(piece)
            position += entry.nbytes
        for entry in everything:
            if entry.owner is not None:
                plan[entry.owner].append(whole(entry))
            for rank in range(len(entry.parts)):
                if (own := part(entry, rank)).count:
                    plan[rank].append(own)
        return {rank: pieces for rank, pieces in plan.items() if pieces}


def _cuts(entry: Entry, position: int, share: int) -> Iterable[tuple[int, Piece]]:
    """The pieces of an entry whose first byte is byte `position` of the whole state, with their rank.

    A cut lies at the first element that begins behind the boundary: elements stay whole.
    """
    size = np.dtype(entry.dtype).itemsize
    total = entry.nbytes // size
    begin = 0
    while begin < total:
        rank = (position + begin * size) // share
        end = min(total, -(-((rank + 1) * share - position) // size))
        yield rank, Piece(entry, begin, end - begin)
        begin = end
    if total == 0:
        yield position // share, whole(entry)
