"""How many bytes a run will need in scratch, from the model's description alone."""

from __future__ import annotations

from typing import Any

from hpcckpt import registry
from hpcckpt.experiment import Run
from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies.base import Topology

VALUE_BYTES = 4  # float32
MARGIN = 1.1
"""Containers, headers and random states."""
FIXED_BYTES = 1 << 20


def state_bytes(run: Run) -> int:
    """Bytes of one replica of the training state: parameters, optimizer, buffers."""
    model = registry.load("hpcckpt.models", run.point.model)
    framework: Any = registry.load("hpcckpt.frameworks", run.point.framework)
    slots = framework.optimizer_slots[run.settings.optimizer]
    return int(VALUE_BYTES * (model.parameter_count() * (1 + slots) + model.buffer_count()))


def generations(run: Run) -> int:
    """Checkpoints that a leg writes."""
    return (run.settings.steps - 1) // run.point.interval_steps


def bytes_needed(run: Run) -> int:
    """Bytes in scratch at a leg's fullest moment: one more generation than is kept while it is replaced."""
    strategy = registry.load("hpcckpt.strategies", run.point.strategy)
    whole_state = Entry("state", "other", (state_bytes(run),), "uint8")
    plan = strategy.plan([whole_state], Topology(run.ranks, run.point.ranks_per_node))
    one = sum(piece.nbytes for pieces in plan.values() for piece in pieces)
    made = generations(run)
    keep = run.settings.keep
    held = made if keep == "all" or strategy.refers_back else min(made, keep + 1)
    return int(held * (one * MARGIN + FIXED_BYTES)) + states_bytes(run)


def states_bytes(run: Run) -> int:
    """Bytes of the states that a test of restart keeps for comparison: at every step of the reference, and whole."""
    restart = run.settings.restart
    if restart is None:
        return 0
    all_steps = 2 * state_bytes(run) * run.settings.steps  # gradients are as large as parameters
    return min(all_steps, restart.dump_limit_bytes * run.ranks) + state_bytes(run)
