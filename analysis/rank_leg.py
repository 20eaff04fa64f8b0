"""What is known of one rank's leg, of the files on disk and of the format, before anything is worked out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from analysis.readers.trace import RankTrace
from hpcckpt.records import Clock, Gpu, Save, Span

Ns = npt.NDArray[np.int64]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The format's declared interval of traced over on-disk bytes."""

    low: float = 0.99
    high: float = 1.05


class RankLeg(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a leg with checkpoints."""

    rank: int
    node: str
    clocks: list[Clock]
    saves: dict[int, Save]
    spans: dict[int, list[Span]]
    trace: RankTrace
    gpu: Gpu | None = None


class Disk(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The inventory's bytes per generation and rank."""

    bytes: dict[tuple[int, int], int] = {}
    reason: str | None = None
    """Why nothing is known of any generation."""
    unknown: dict[int, str] = {}
    """generation -> why its bytes are not known."""

    def why(self, generation: int) -> str | None:
        """Why nothing is known of this generation; None where its bytes are."""
        # Every checkpoint has files: a generation without any was not listed, it does not hold 0 bytes.
        if self.reason or generation in self.unknown:
            return self.reason or self.unknown[generation]
        if generation in self._listed:
            return None
        return f"the inventory lists nothing of generation {generation}"

    @cached_property
    def _listed(self) -> frozenset[int]:
        return frozenset(generation for generation, _ in self.bytes)

    def of(self, generation: int, rank: int) -> int | None:
        """Bytes of a rank's files in a generation; None with `why`."""
        return None if self.why(generation) else self.bytes.get((generation, rank), 0)


def offset_ns(clocks: Sequence[Clock], t_ns: int) -> int | None:
    """What to add to the rank's own time at `t_ns`: linear between the measurements, constant outside."""
    if not clocks:
        return None
    ordered = sorted(clocks, key=lambda clock: clock.t_ns)
    before = [c for c in ordered if c.t_ns <= t_ns] or ordered[:1]
    after = [c for c in ordered if c.t_ns > t_ns] or ordered[-1:]
    left, right = before[-1], after[0]
    if right.t_ns <= left.t_ns:
        return left.offset_ns
    share = (t_ns - left.t_ns) / (right.t_ns - left.t_ns)
    return left.offset_ns + round(share * (right.offset_ns - left.offset_ns))


def offsets_ns(clocks: Sequence[Clock], times: Ns) -> Ns | None:
    """`offset_ns` at many times; None where there is none."""
    if not clocks:
        return None
    if len({clock.offset_ns for clock in clocks}) == 1:
        return np.full(len(times), clocks[0].offset_ns)
    return np.array([offset_ns(clocks, t) for t in times.tolist()], dtype=np.int64)
