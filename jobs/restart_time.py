"""Where the time of a restart went, from the death of a rank to the end of the first step behind the restore.

Adds up clocks of one machine's kernel only: on several hosts the parts between two clocks are not measured.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

from hpcckpt.comm import boot_id
from hpcckpt.planting import RESTORED
from hpcckpt.records import RESTART_PARTS, TRAIN, Restored, Split, Start, Step, read_up_to_damage
from hpcckpt.rundir import LegDir, RunDir

COLD = "the files were written back and the kernel was asked to drop their pages (posix_fadvise)"
ENDED_WELL = "the leg came to a proper end: nothing had to be noticed"
OTHER_CLOCK = "ranks and driver ran on several kernels, whose clocks differ"
NOT_SEEN = "the driver that saw that leg end was not this one"


@dataclass
class Moments:
    """When the driver started and ended a leg's launch, in nanoseconds of CLOCK_MONOTONIC."""

    begun: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    def begin(self, leg: str) -> None:
        self.begun[leg] = time.monotonic_ns()

    def end(self, leg: str) -> None:
        self.ended[leg] = time.monotonic_ns()


def split(moments: Moments, paths: RunDir, size: int) -> Split:
    """The parts of the restored leg's beginning, each as long as the slowest rank made it."""
    ranks = [read_up_to_damage(paths.leg(RESTORED).rank_file(rank)) for rank in range(size)]
    began = [found for records in ranks for found in records if isinstance(found, Restored)]
    steps = [next((r for r in records if isinstance(r, Step)), None) for records in ranks]
    boots = {r.boot_id for records in ranks for r in records if isinstance(r, Start)}
    marks: list[int | None] = [
        _death(paths.leg(TRAIN)),
        moments.ended.get(TRAIN),
        moments.begun.get(RESTORED),
        *(max((getattr(found, name) for found in began), default=None) for name in _OF_A_RANK),
        max((step.begin_ns for step in steps if step), default=None),
        max((step.end_ns for step in steps if step), default=None),
    ]
    if boots != {boot_id()}:
        marks[:3] = [None, None, None]
    return _parts(marks, len(boots) > 1, began)


_OF_A_RANK = ("born_ns", "ready_ns", "begin_ns", "end_ns")


def _parts(marks: list[int | None], several_clocks: bool, began: list[Restored]) -> Split:
    found: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name, (first, last) in zip(RESTART_PARTS, pairwise(marks), strict=True):
        if several_clocks or (name != "detect" and None in (first, last)):
            reasons[name] = OTHER_CLOCK if several_clocks else NOT_SEEN
        elif first is None or last is None:
            reasons[name] = ENDED_WELL
        else:
            found[name] = (last - first) / 1e9
    cached = [each.cached for each in began if each.cached is not None]
    return Split(parts_s=found, reasons=reasons, cached=max(cached, default=None), cold=COLD)


def _death(leg: LegDir) -> int | None:
    """When the rank was killed, by this kernel's clock."""
    found = leg.read_death()
    return found[0] if found and found[1] == boot_id() else None
