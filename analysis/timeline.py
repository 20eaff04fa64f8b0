"""One checkpoint again, call by call: what each rank did when, on the common clock.

The tables keep sums; a figure of a single checkpoint needs every span and every write call. They are
read again from the run directory for the one checkpoint that is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from analysis.opened import LeftOut, opened, rank_legs
from analysis.rank_leg import RankLeg, offset_ns
from analysis.readers import trace as traces
from analysis.readers.trace import TraceReader
from hpcckpt.errors import RunError
from hpcckpt.records import TRAIN, Save

SPANS = {"rank": pl.Int64, "node": pl.String, "phase": pl.String, "begin_s": pl.Float64, "end_s": pl.Float64}
CALLS = {"rank": pl.Int64, "begin_s": pl.Float64, "end_s": pl.Float64, "bytes": pl.Int64}


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds from the earliest begin of a stall; `wait_before` lies before it, so below zero."""

    spans: pl.DataFrame
    """rank, node, phase, begin_s, end_s"""
    calls: pl.DataFrame
    """rank, begin_s, end_s, bytes: write calls"""
    reasons: dict[int, str]
    """rank -> why its write calls are not there; a rank that wrote nothing has no reason"""


def timeline(path: Path, generation: int, read_trace: TraceReader = traces.read_trace) -> Timeline:
    """The checkpoint `generation` of the run at `path`.

    Raises RunError for a run that cannot be counted, a generation that it does not hold, and ranks
    whose clocks were not compared: their times have no place on one axis.
    """
    try:
        run = opened(path)
        legs = rank_legs(run.directory.leg(TRAIN), run.legs[TRAIN], read_trace)
    except LeftOut as left:
        raise RunError(f"{left.file}: {left.reason}") from left
    if any(generation not in leg.saves for leg in legs.values()):
        raise RunError(f"{path}: no generation {generation}; it holds {', '.join(map(str, legs[0].saves)) or 'none'}")
    shifts = {leg.rank: _shift(path, leg, leg.saves[generation]) for leg in legs.values()}
    zero = min(leg.saves[generation].begin_ns + shifts[leg.rank] for leg in legs.values())
    spans: list[tuple[Any, ...]] = []
    calls: list[pl.DataFrame] = []
    reasons: dict[int, str] = {}
    for leg in legs.values():
        moved = shifts[leg.rank] - zero
        spans += (
            (leg.rank, leg.node, span.phase, (span.begin_ns + moved) / 1e9, (span.end_ns + moved) / 1e9)
            for span in leg.spans.get(generation, [])
        )
        found = _calls(leg, generation, moved)
        if isinstance(found, str):
            reasons[leg.rank] = found
        else:
            calls.append(found)
    return Timeline(
        spans=pl.DataFrame(spans, schema=SPANS, orient="row").sort("rank", "begin_s", maintain_order=True),
        calls=pl.concat([pl.DataFrame(schema=CALLS), *calls]).sort("rank", "begin_s", maintain_order=True),
        reasons=reasons,
    )


def _shift(path: Path, leg: RankLeg, save: Save) -> int:
    """What to add to a rank's own times. One number for the whole checkpoint: a clock hardly drifts within it."""
    found = offset_ns(leg.clocks, save.begin_ns)
    if found is None:
        raise RunError(f"{path}: clocks of the hosts were not compared (rank {leg.rank}): no common axis")
    return found


def _calls(leg: RankLeg, generation: int, moved: int) -> pl.DataFrame | str:
    """The rank's write calls, or why they are not known."""
    traced = leg.trace.generations.get(generation)
    if leg.trace.reason or traced is None:
        return leg.trace.reason or "the trace holds nothing of this generation"
    if traced.calls is None:
        return traced.calls_reason or "calls without times"
    columns = {
        "rank": [leg.rank] * len(traced.calls.begin_ns),
        "begin_s": (traced.calls.begin_ns + moved) / 1e9,
        "end_s": (traced.calls.end_ns + moved) / 1e9,
        "bytes": traced.calls.length,
    }
    return pl.DataFrame(columns, schema=CALLS)
