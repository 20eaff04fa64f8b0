"""Records that no rank can have written: times that run backwards, sizes below zero, lines out of place.

Each check gives the reason in words, None where all is possible. Nothing is read or repaired here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter, gt
from typing import get_args

import msgspec

from hpcckpt.records import (
    BACKGROUND,
    LINES,
    Beacon,
    Clock,
    Digests,
    Drain,
    End,
    Gpu,
    Probe,
    Record,
    Restored,
    Save,
    Span,
    Start,
    Step,
    Verified,
    Window,
)

_NEVER_NEGATIVE: dict[type[Record], tuple[str, ...]] = {
    Clock: ("error_ns",),
    Probe: ("count", "median_s", "max_s"),
    Drain: ("seconds",),
    Save: ("generation", "state_bytes", "planned_bytes", "rss_before_bytes", "rss_peak_bytes", "cpu_ns"),
    Window: ("steps", "saves", "paused_ns", "cpu_ns"),
    Verified: ("tensors", "read_ns", "cached"),
    Digests: ("step", "cost_ns", "bytes"),
}
_IN_ORDER: dict[type[Record], tuple[str, ...]] = {
    Beacon: ("before_ns", "after_ns"),
    Step: ("begin_ns", "end_ns"),
    Span: ("begin_ns", "end_ns"),
    Save: ("arrive_ns", "begin_ns", "done_ns", "end_ns"),
    Window: ("begin_ns", "end_ns"),
    Restored: ("born_ns", "ready_ns", "begin_ns", "end_ns"),
}


WINDOWS_APART, WINDOWS_APART_NS = 1.5, 10**9
"""By what factor, and by how much, windows between the same barriers must differ to be impossible: on crowded cores a
rank may leave a barrier some 0.1 s after the others, half of a short window at most."""
_LONGEST_SAVE_NS = 7 * 24 * 3600 * 10**9
_LIMIT = 2**62
"""Whole numbers beyond it overflow where they are added up; no clock and no file reaches it."""
_WHOLE: dict[type[Record], tuple[str, ...]] = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.type in (int, int | None))
    for kind in get_args(LINES)
}


def possible(found: Mapping[type[Record], Sequence[Record]], lines: int) -> bool:
    """Whether `impossible` will find nothing, from the records by type: the same rules, a column at a time."""
    return (
        len(found.get(Start, ())) <= 1
        and all(map(_column_possible, found.items()))
        and not any(map(_paused_too_long, found.get(Window, ())))  # type: ignore[arg-type]
        and not any(map(_too_long, found.get(Save, ())))  # type: ignore[arg-type]
        and len({_span(span) for span in found.get(Span, ())}) == len(found.get(Span, ()))  # type: ignore[arg-type]
        and not any(map(_odd_samples, found.get(Gpu, ())))  # type: ignore[arg-type]
        and _misfit(found.get(Span, ()), found.get(Save, ())) is None  # type: ignore[arg-type]
        and len(found.get(End, ())) <= 1
    )


def _column_possible(item: tuple[type[Record], Sequence[Record]]) -> bool:
    kind, found = item
    ordered = _IN_ORDER.get(kind, ())
    for before, after in pairwise([list(map(attrgetter(name), found)) for name in ordered]):
        if any(map(gt, before, after)):
            return False
    for name in _WHOLE[kind]:
        values = [value for value in map(attrgetter(name), found) if value is not None]
        if values and not (min(values) > -_LIMIT and max(values) < _LIMIT):
            return False
    for name in _NEVER_NEGATIVE.get(kind, ()):
        if min((value for value in map(attrgetter(name), found) if value is not None), default=0) < 0:
            return False
    return True


def impossible(found: Sequence[Record]) -> str | None:
    """Why the lines of a complete rank's file cannot all be true."""
    spans: set[tuple[int, str, int]] = set()
    for number, record in enumerate(found, start=1):
        reason = _misplaced(record, number, len(found)) or _unordered(record) or _negative(record) or _beyond(record)
        if reason is None and isinstance(record, Window):
            reason = _paused_too_long(record)
        if reason is None and isinstance(record, Save):
            reason = _too_long(record)
        if reason is None and isinstance(record, Gpu):
            reason = _odd_samples(record)
        if reason is None and isinstance(record, Span):
            key = _span(record)
            reason = "the same span stands there twice" if key in spans else None
            spans.add(key)
        if reason:
            return f"line {number}, {type(record).__name__.lower()}{_of(record)}: {reason}"
    lines = {id(record): number for number, record in enumerate(found, start=1)}
    spans_, saves = ([each for each in found if isinstance(each, kind)] for kind in (Span, Save))
    if misfit := _misfit(spans_, saves):  # type: ignore[arg-type]
        return f"line {lines[id(misfit[0])]}, span{_of(misfit[0])}: {misfit[1]}"
    return None


def _misfit(spans: Sequence[Span], saves: Sequence[Save]) -> tuple[Span, str] | None:
    """The first span that does not fit its save or meets another one: both happened on the training thread.

    What goes on behind the stall has a thread of its own and may end after its save.
    """
    known = {save.generation: save for save in saves}
    exclusive = sorted((span for span in spans if span.phase != BACKGROUND), key=attrgetter("begin_ns", "end_ns"))
    before: Span | None = None
    for span in exclusive:
        save = known.get(span.generation)
        if save is not None and (span.begin_ns < save.arrive_ns or span.end_ns > save.end_ns):
            bounds = f"[{save.arrive_ns}, {save.end_ns}]"
            return span, f"{span.phase} [{span.begin_ns}, {span.end_ns}] lies outside of its save {bounds}"
        if before is not None and span.begin_ns < before.end_ns:
            return span, f"{span.phase} begins {before.end_ns - span.begin_ns} ns before {before.phase} ends"
        before = span
    for span in spans:
        save = known.get(span.generation)
        if span.phase == BACKGROUND and save is not None and span.begin_ns < save.arrive_ns:
            return span, f"{span.phase} begins at {span.begin_ns}, before its save at {save.arrive_ns}"
    return None


def impossible_windows(windows: Mapping[int, Sequence[Window]]) -> tuple[int, str] | None:
    """The rank whose window cannot be true beside its peers', and why: all begin and end at the same barriers."""
    lengths = {rank: window.end_ns - window.begin_ns for rank, mine in windows.items() for window in mine}
    if len(lengths) < 2:
        return None
    shortest, longest = (choose(lengths, key=lambda rank: lengths[rank]) for choose in (min, max))
    least, most = lengths[shortest], lengths[longest]
    if most <= WINDOWS_APART * least or most - least <= WINDOWS_APART_NS:
        return None
    other = f"rank {shortest}'s between the same barriers {least / 1e9:.4g} s"
    return longest, f"its window lasts {most / 1e9:.4g} s, {other}"


def impossible_saves(saves: Sequence[Save], windows: Sequence[Window], first: int = 0) -> str | None:
    """Why the checkpoints of a train leg cannot be all that the rank saved; `first`: 0, unless the leg went on."""
    saved = [save.generation for save in saves]
    if saved != list(range(first, first + len(saved))):
        return f"generations {saved} are not counted from {first} without a gap"
    for window in windows:
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


def _beyond(record: Record) -> str | None:
    for name in _WHOLE[type(record)]:
        value = getattr(record, name)
        if value is not None and not -_LIMIT < value < _LIMIT:
            return f"{name} is {value}"
    return None


def _span(span: Span) -> tuple[int, str, int]:
    return span.generation, span.phase, span.begin_ns


def _too_long(save: Save) -> str | None:
    length = save.end_ns - save.arrive_ns
    return f"it lasted {length / 1e9:.0f} s" if length > _LONGEST_SAVE_NS else None


def _odd_samples(gpu: Gpu) -> str | None:
    if len(gpu.t_ns) != len(gpu.busy):
        return f"{len(gpu.t_ns)} times of {len(gpu.busy)} samples"
    beyond = [t for t in gpu.t_ns if not -_LIMIT < t < _LIMIT]
    return f"a sample at {beyond[0]}" if beyond else None


def _paused_too_long(window: Window) -> str | None:
    length = window.end_ns - window.begin_ns
    return f"paused_ns {window.paused_ns} in a window of {length} ns" if window.paused_ns > length else None
