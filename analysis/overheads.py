"""What a run lost to checkpoints as a whole: window against control, drain behind the last save, fsync probe.

Pure: records in, columns of the table `runs` and rows of `windows` out. Every missing number has its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.readers.ranks import RankFile
from hpcckpt.records import CONTROL, TRAIN, Drain, Probe, Window

Row = dict[str, Any]
_EMPTY = (
    "window_train_s",
    "window_control_s",
    "overhead_s",
    "overhead_per_checkpoint_s",
    "overhead_fraction",
    "interval_s",
)


def windows(run: str, legs: Mapping[str, Sequence[RankFile]]) -> list[Row]:
    """The `windows` rows of a run; a rank without a window has none."""
    return [
        {
            "run": run,
            "leg": leg,
            "rank": file.start.rank,
            "window_s": (window.end_ns - window.begin_ns) / 1e9,
            "paused_s": window.paused_ns / 1e9,
            "steps": window.steps,
            "saves": window.saves,
            "cpu_s": None if window.cpu_ns is None else window.cpu_ns / 1e9,
        }
        for leg, files in legs.items()
        for file in files
        for window in file.all(Window)
    ]


def overhead(rows: Sequence[Row], interval_steps: int) -> Row:
    """Overhead columns of a run from its `windows` rows: (train less pauses) - (control less pauses)."""
    train, control = (_longest([row for row in rows if row["leg"] == leg]) for leg in (TRAIN, CONTROL))
    empty: Row = {
        **dict.fromkeys(_EMPTY),
        "window_steps": None,
        "window_saves": None,
        "overhead_reason": None,
    }
    if train:
        empty |= {
            "window_train_s": train["window_s"],
            "window_steps": train["steps"],
            "window_saves": train["saves"],
        }
    reason = _no_overhead(train, control)
    if reason or train is None or control is None:
        return {**empty, "overhead_reason": reason}
    lost = train["window_s"] - control["window_s"]
    return {
        **empty,
        "window_control_s": control["window_s"],
        "overhead_s": lost,
        "overhead_per_checkpoint_s": lost / train["saves"],
        "overhead_fraction": lost / control["window_s"],
        "interval_s": control["window_s"] / control["steps"] * interval_steps,
    }


def _longest(rows: list[Row]) -> Row | None:
    """The window of the whole job: each rank's begins at a barrier, the longest one counts."""
    if not rows:
        return None
    # A pause holds all ranks up, whether or not each of them records it.
    window = max(row["window_s"] for row in rows) - max(row["paused_s"] for row in rows)
    steps = {row["steps"] for row in rows}
    saves = max(row["saves"] for row in rows)
    return {"window_s": window, "steps": steps.pop() if len(steps) == 1 else None, "saves": saves}


def _no_overhead(train: Row | None, control: Row | None) -> str | None:
    if train is None:
        return "no window in the train leg"
    if control is None:
        return "no control leg"
    if train["steps"] is None or train["steps"] != control["steps"] or not train["steps"]:
        return f"windows of {train['steps']} and {control['steps']} steps (train, control) cannot be compared"
    if control["saves"]:
        return "the control leg holds checkpoints"
    if not train["saves"]:
        return "no checkpoint in the window"
    if control["window_s"] <= 0:
        return "the control's window is empty"
    return None


def deferred(files: Sequence[RankFile]) -> Row:
    """What was still to be written back after the last save, on the host that took longest."""
    drains = [drain for file in files for drain in file.all(Drain) if drain.when == "after_last_save"]
    if not drains:
        return {"deferred_s": None, "deferred_reason": "no drain recorded after the last save"}
    reached = all(drain.reached for drain in drains)
    reason = None if reached else "the limit was reached first: at least so long"
    return {"deferred_s": max(drain.seconds for drain in drains), "deferred_reason": reason}


def durable_reason(durable: bool, legs: Mapping[str, Sequence[RankFile]]) -> str | None:
    """Why durable numbers mean nothing in this run; None where they do, and for buffered runs."""
    if not durable:
        return None
    probes = [probe for files in legs.values() for file in files for probe in file.all(Probe)]
    if not probes:
        return "what is behind fsync was not probed"
    refusal = next((probe for probe in probes if probe.reason), None)
    return f"no device behind fsync ({refusal.reason})" if refusal else None
