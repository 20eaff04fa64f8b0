"""Records that no rank can have written: times that run backwards, sizes below zero, lines out of place.

Each check gives the reason in words, None where all is possible. Nothing is read or repaired here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hpcckpt.records import Beacon, Clock, Drain, End, Probe, Record, Save, Span, Start, Step, Window

_NEVER_NEGATIVE: dict[type[Record], tuple[str, ...]] = {
    Clock: ("error_ns",),
    Probe: ("count", "median_s", "max_s"),
    Drain: ("seconds",),
    Save: ("generation", "state_bytes", "planned_bytes", "rss_before_bytes", "rss_peak_bytes"),
    Window: ("steps", "saves", "paused_ns"),
}
_IN_ORDER: dict[type[Record], tuple[str, ...]] = {
    Beacon: ("before_ns", "after_ns"),
    Step: ("begin_ns", "end_ns"),
    Span: ("begin_ns", "end_ns"),
    Save: ("arrive_ns", "begin_ns", "done_ns", "end_ns"),
    Window: ("begin_ns", "end_ns"),
}


def impossible(found: Sequence[Record]) -> str | None:
    """Why the lines of a complete rank's file cannot all be true."""
    spans: set[tuple[int, str, int]] = set()
    for number, record in enumerate(found, start=1):
        reason = _misplaced(record, number, len(found)) or _unordered(record) or _negative(record)
        if reason is None and isinstance(record, Window):
            reason = _paused_too_long(record)
        if reason is None and isinstance(record, Span):
            key = (record.generation, record.phase, record.begin_ns)
            reason = "the same span stands there twice" if key in spans else None
            spans.add(key)
        if reason:
            return f"line {number}, {type(record).__name__.lower()}{_of(record)}: {reason}"
    return None


def impossible_saves(found: Sequence[Record]) -> str | None:
    """Why the checkpoints of a train leg cannot be all that the rank saved."""
    saved = [record.generation for record in found if isinstance(record, Save)]
    if saved != list(range(len(saved))):
        return f"generations {saved} are not counted from 0 without a gap"
    for window in (record for record in found if isinstance(record, Window)):
        if window.saves != len(saved):
            return f"the window counts {window.saves} saves, the file holds {len(saved)}"
    return None


def _of(record: Record) -> str:
    return f" of generation {record.generation}" if isinstance(record, Span | Save) else ""


def _misplaced(record: Record, number: int, lines: int) -> str | None:
    if isinstance(record, End) and number != lines:
        return f"a closing line before the last of {lines} lines"
    if isinstance(record, Start) and number != 1:
        return "a second opening line"
    return None


def _unordered(record: Record) -> str | None:
    names = _IN_ORDER.get(type(record), ())
    for before, after in pairwise(names):
        if getattr(record, after) < getattr(record, before):
            return f"{after} {getattr(record, after)} is before {before} {getattr(record, before)}"
    return None


def _negative(record: Record) -> str | None:
    for name in _NEVER_NEGATIVE.get(type(record), ()):
        value = getattr(record, name)
        if value is not None and value < 0:
            return f"{name} is {value}"
    return None


def _paused_too_long(window: Window) -> str | None:
    length = window.end_ns - window.begin_ns
    return f"paused_ns {window.paused_ns} in a window of {length} ns" if window.paused_ns > length else None
