"""How long steps and reads took: rows of the tables `steps` and `reads`. Pure: records in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from analysis.readers.ranks import RankFile
from hpcckpt.records import Step, Verified

Row = dict[str, Any]


def steps(run: str, legs: Mapping[str, Sequence[RankFile]]) -> list[Row]:
    """One row per leg: a step lasts as long as on the rank where it lasts longest."""
    return [{"run": run, "leg": leg, **_summary(files)} for leg, files in legs.items()]


def _summary(files: Sequence[RankFile]) -> Row:
    longest: dict[int, int] = {}
    for file in files:
        for step in file.all(Step):
            longest[step.index] = max(longest.get(step.index, 0), step.end_ns - step.begin_ns)
    # The first one warms up: it compiles, allocates and reads the data's first part.
    longest.pop(min(longest, default=0), None)
    lengths = [ns / 1e9 for ns in longest.values()]
    return {
        "steps": len(lengths),
        "step_median_s": median(lengths) if lengths else None,
        "step_max_s": max(lengths, default=None),
    }


def reads(run: str, files: Sequence[RankFile]) -> list[Row]:
    """One row per generation and rank that read it back, or said why not."""
    return [
        {
            "run": run,
            "generation": found.generation,
            "rank": file.start.rank,
            "equal": found.equal,
            "tensors": found.tensors,
            "read_s": None if found.read_ns is None else found.read_ns / 1e9,
            "cached": found.cached,
            "reason": found.reason,
        }
        for file in files
        for found in file.all(Verified)
    ]
