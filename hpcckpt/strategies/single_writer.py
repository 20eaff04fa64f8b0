"""Rank 0 writes everything, as most training scripts do; all others wait.

Of a model that lies in parts on the ranks, rank 0 gathers the whole tensors first.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies._parts import PartsStrategy
from hpcckpt.strategies.base import Plan, Topology, whole


class SingleWriter(PartsStrategy):
    content = "disjoint"
    gathers = True

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        return {0: [whole(entry) for entry in entries]}
