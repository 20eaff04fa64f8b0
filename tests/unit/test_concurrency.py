"""Intervals of many lanes at once: the same numbers as counting instants, lane by lane."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.concurrency import Intervals, clipped, covered, load, united

LANES = 4
INTERVAL = st.tuples(st.integers(0, LANES - 1), st.integers(-9, 20), st.integers(0, 9))
FAR = 2**61
"""So far apart lie the clocks of two lanes: nothing may be added to a time."""


def made(found: list[tuple[int, int, int]]) -> Intervals:
    lane, begin, length = (np.array([each[i] for each in found], np.int64) for i in range(3))
    zero = np.where(lane % 2, FAR, -FAR)
    return Intervals(lane, zero + begin, zero + begin + length)


def instants(found: Intervals, lane: int) -> list[int]:
    """Every instant of every interval of a lane."""
    rows = zip(*(column.tolist() for column in found), strict=True)
    return [t for each, begin, end in rows if each == lane for t in range(begin, end)]


@given(st.lists(INTERVAL, max_size=12))
def test_united_intervals_cover_the_same_instants_once(found: list[tuple[int, int, int]]) -> None:
    given_, result = made(found), united(made(found))
    for lane in range(LANES):
        assert instants(result, lane) == sorted(set(instants(given_, lane)))
    pairs = list(zip(*(column.tolist() for column in result), strict=True))
    assert pairs == sorted(pairs)
    assert all(left[0] < right[0] or left[2] < right[1] for left, right in pairwise(pairs))


@given(st.lists(INTERVAL, max_size=12), st.lists(INTERVAL, max_size=6))
def test_covered_time_of_any_part_of_any_lane(
    found: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    result, parts = united(made(found)), made(asked)
    expected = [
        sum(begin <= t < end for t in set(instants(result, lane)))
        for lane, begin, end in zip(*(column.tolist() for column in parts), strict=True)
    ]
    assert covered(result, *parts).tolist() == expected


@given(st.lists(INTERVAL, max_size=12))
def test_load_of_each_lane(found: list[tuple[int, int, int]]) -> None:
    given_ = made(found)
    result = load(given_, LANES)
    for lane in range(LANES):
        all_ = instants(given_, lane)
        assert result.total[lane] == len(all_)
        assert result.covered[lane] == len(set(all_))
        assert result.most[lane] == max(map(all_.count, all_), default=0)


@given(st.lists(INTERVAL, max_size=12), st.integers(-9, 20), st.integers(0, 9))
def test_clipped_to_a_part_of_each_lane(found: list[tuple[int, int, int]], low: int, length: int) -> None:
    given_ = made(found)
    zero = np.where(np.arange(LANES) % 2, FAR, -FAR)
    result = clipped(given_, zero + low, zero + low + length)
    for lane in range(LANES):
        begin = int(zero[lane]) + low
        assert instants(result, lane) == [t for t in instants(given_, lane) if begin <= t < begin + length]
    assert bool((result.end > result.begin).all())


def test_one_that_ends_as_another_begins_does_not_overlap_it() -> None:
    zeros = np.zeros(2, np.int64)
    assert load(Intervals(zeros, np.array([0, 5]), np.array([5, 9])), 1).most.tolist() == [1]
