"""The first rank of every node writes a whole copy, with what only its node's ranks hold."""

from __future__ import annotations

from collections.abc import Iterable

from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies._parts import PartsStrategy
from hpcckpt.strategies.base import Plan, Topology, whole


class NodeWriter(PartsStrategy):
    content = "redundant"
    needs_whole = True

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        writers = range(0, topology.ranks, topology.ranks_per_node)
        plan: Plan = {writer: [] for writer in writers}
        for entry in entries:
            if entry.owner is None:
                for writer in writers:
                    plan[writer].append(whole(entry))
            else:
                plan[entry.owner - entry.owner % topology.ranks_per_node].append(whole(entry))
        return plan
