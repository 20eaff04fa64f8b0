"""Every rank writes its own whole copy, whatever the others write."""

from __future__ import annotations

from collections.abc import Iterable

from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies._parts import PartsStrategy
from hpcckpt.strategies.base import Plan, Topology, whole


class Replicated(PartsStrategy):
    content = "redundant"
    needs_whole = True

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        everything = list(entries)
        return {
            rank: [whole(entry) for entry in everything if entry.owner in (None, rank)]
            for rank in range(topology.ranks)
        }
