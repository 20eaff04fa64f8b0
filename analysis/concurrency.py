"""Intervals of many lanes at once: time covered, and how many run at the same instant. Arrays only.

A lane is what intervals are united in: a rank's stall, or a checkpoint of the whole job. Times of
a lane may have any zero of their own, as long as all of its intervals share it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ns = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Columns of equal length."""

    lane: Ns
    begin: Ns
    end: Ns


class Load(NamedTuple):
    """Per lane; 0 where a lane has no interval."""

    covered: Ns
    """Time in which at least one interval ran."""
    total: Ns
    """Sum of the lengths."""
    most: Ns
    """Most intervals at one instant; one that ends as another begins does not overlap it."""


def clipped(found: Intervals, low: Ns, high: Ns) -> Intervals:
    """The parts within [low, high] of each interval's lane; what lies outside or lasts no time is dropped."""
    begin = np.maximum(found.begin, low[found.lane])
    end = np.minimum(found.end, high[found.lane])
    kept = end > begin
    return Intervals(found.lane[kept], begin[kept], end[kept])


def united(found: Intervals) -> Intervals:
    """Per lane the fewest intervals that cover the same time, in order."""
    if not len(found.lane):
        return found
    order = np.lexsort((found.begin, found.lane))
    lane, begin, end = (column[order] for column in found)
    # The furthest end so far, of each lane: places in the order of (lane, end) grow from lane to lane, so that one
    # running maximum serves all lanes, and no time is added to another.
    by_end = np.lexsort((end, lane))
    place = np.empty(len(end), np.int64)
    place[by_end] = np.arange(len(end))
    reached = end[by_end[np.maximum.accumulate(place)]]
    first = np.concatenate(([True], (lane[1:] != lane[:-1]) | (begin[1:] > reached[:-1])))
    last = np.concatenate((first[1:], [True]))
    return Intervals(lane[first], begin[first], reached[last])


def covered(found: Intervals, lane: Ns, low: Ns, high: Ns) -> Ns:
    """Time within each [low, high] of a lane that `found`, as `united` gives it, covers."""
    return np.asarray(np.maximum(_before(found, lane, high) - _before(found, lane, low), 0), np.int64)


def _before(found: Intervals, lane: Ns, time: Ns) -> Ns:
    """Time covered before each (lane, time), all lanes before it included."""
    count = len(found.lane)
    if not count:
        return np.zeros(len(lane), np.int64)
    is_query = np.repeat([0, 1], (count, len(lane)))
    order = np.lexsort((is_query, np.concatenate((found.begin, time)), np.concatenate((found.lane, lane))))
    begun = np.empty(len(order), np.int64)
    begun[order] = np.cumsum(order < count)
    begun = begun[count:]
    last = np.maximum(begun - 1, 0)
    still = np.where((begun > 0) & (found.lane[last] == lane), np.maximum(found.end[last] - time, 0), 0)
    return np.asarray(np.concatenate(([0], np.cumsum(found.end - found.begin)))[begun] - still, np.int64)


def load(found: Intervals, lanes: int) -> Load:
    """How busy each of `lanes` lanes is."""
    total = np.zeros(lanes, np.int64)
    np.add.at(total, found.lane, found.end - found.begin)
    covered, most = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    if not len(found.lane):
        return Load(covered, total, most)
    lane = np.concatenate((found.lane, found.lane))
    time = np.concatenate((found.begin, found.end))
    change = np.repeat(np.array([1, -1]), len(found.lane))
    order = np.lexsort((change, time, lane))  # at one instant ends come before beginnings
    lane, time, running = lane[order], time[order], np.cumsum(change[order])
    np.maximum.at(most, lane, running)
    # Behind a lane's last end nothing runs, so the step to the next lane's time counts nothing.
    busy = running[:-1] > 0
    np.add.at(covered, lane[:-1][busy], np.diff(time)[busy])
    return Load(covered, total, most)
