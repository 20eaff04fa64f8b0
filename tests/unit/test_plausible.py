"""The quick check of a whole file and the slow one that finds the words agree, whatever the file holds."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.readers.plausible import impossible, impossible_windows, possible
from analysis.readers.ranks import IMPOSSIBLE_RECORD
from hpcckpt import records as r
from hpcckpt.rundir import RunDir
from tests.unit.collecting import only, taken
from tests.unit.planted import Plan, plant


@cache
def lines() -> list[r.Record]:
    """Rank 0's, with every record type that planted ranks write, and GPU samples."""
    with TemporaryDirectory() as directory:
        file = RunDir(plant(Path(directory), Plan(nodes=1, generations=2))).leg("train").rank_file(0)
        found = [r.decode(line) for line in file.read_bytes().splitlines()]
    return [*found[:-1], r.Gpu(t_ns=[1, 2], busy=[0.5, 0.5], reason=None), found[-1]]


def quick(found: list[r.Record]) -> bool:
    by_type: dict[type[r.Record], list[r.Record]] = defaultdict(list)
    for record in found:
        by_type[type(record)].append(record)
    return possible(by_type, len(found))


def whole_fields(record: r.Record) -> list[str]:
    return [f.name for f in msgspec.structs.fields(type(record)) if f.type in (int, int | None)]


NUMBERS = st.one_of(
    st.integers(-5, 5), st.sampled_from([2**61, 2**62, 2**63, 2**64, -(2**62), -(2**63), 10**30]), st.integers()
)


@given(st.data())
def test_quick_and_slow_check_agree(data: st.DataObject) -> None:
    found = list(lines())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(found) - 1))
        kind = data.draw(st.sampled_from(["change", "twice", "drop"]))
        names = whole_fields(found[at])
        if kind == "change" and names:
            changes: dict[str, Any] = {data.draw(st.sampled_from(names)): data.draw(NUMBERS)}
            found[at] = msgspec.structs.replace(found[at], **changes)
        elif kind == "twice":
            found.insert(at, found[at])
        elif kind == "drop" and 0 < at < len(found) - 1:
            del found[at]
    assert quick(found) is (impossible(found) is None)


def test_planted_lines_are_possible() -> None:
    assert quick(lines())


@pytest.mark.parametrize("number", [2**62, 2**63, 2**64, 10**30, -(2**63)])
def test_a_number_beyond_all_clocks_is_refused_by_name(tmp_path: Path, number: int) -> None:
    path = plant(tmp_path, Plan(nodes=1))
    file = RunDir(path).leg("train").rank_file(0)
    text = file.read_bytes()
    old = b'"offset_ns":0'
    assert old in text
    file.write_bytes(text.replace(old, f'"offset_ns":{number}'.encode(), 1))
    left = only(path)
    assert left["code"] in (IMPOSSIBLE_RECORD, "bad_line")
    assert str(number) in left["reason"] or left["code"] == "bad_line"


def test_samples_that_do_not_match_are_refused(tmp_path: Path) -> None:
    for number, (times, busy) in enumerate([([1], []), ([2**63], [1.0])], start=1):
        gpu = r.Gpu(t_ns=times, busy=busy, reason=None)
        path = plant(tmp_path, Plan(nodes=1, repeat=number))
        file = RunDir(path).leg("train").rank_file(0)
        found = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([*found[:-1], r.encode(gpu), found[-1]]))
        assert only(path)["code"] == IMPOSSIBLE_RECORD


def test_a_save_of_weeks_is_refused(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(nodes=1))
    file = RunDir(path).leg("train").rank_file(0)
    found = [r.decode(line) for line in file.read_bytes().splitlines()]
    longer = [
        msgspec.structs.replace(each, end_ns=each.end_ns + 10**15) if isinstance(each, r.Save) else each
        for each in found
    ]
    file.write_bytes(b"".join(map(r.encode, longer)))
    assert "it lasted" in only(path)["reason"]


def changed(path: Path, rank: int, change: Any, leg: str = "train") -> None:
    """Rewrites a rank's file with each record through `change`."""
    file = RunDir(path).leg(leg).rank_file(rank)
    found = [change(r.decode(line)) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"".join(map(r.encode, found)))


def later(phase: str, begin_ns: int, end_ns: int) -> Any:
    """Moves the ends of every span of the phase."""

    def change(record: r.Record) -> r.Record:
        if not isinstance(record, r.Span) or record.phase != phase:
            return record
        return msgspec.structs.replace(record, begin_ns=record.begin_ns + begin_ns, end_ns=record.end_ns + end_ns)

    return change


@pytest.mark.parametrize(
    ("phase", "begin_ns", "end_ns", "words"),
    [
        ("serialize+write", -(10**12), 0, "outside of its save"),
        ("serialize+write", 0, 10**12, "outside of its save"),
        ("wait_after", 0, 1, "outside of its save"),
        ("wait_before", 0, 10**6, "before wait_before ends"),
        ("serialize+write", -(10**6), 0, "begins 1000000 ns before"),
    ],
)
def test_spans_outside_their_save_or_over_each_other_are_refused(
    tmp_path: Path, phase: str, begin_ns: int, end_ns: int, words: str
) -> None:
    path = plant(tmp_path, Plan(nodes=2, late_s={1: 0.01}))
    changed(path, 0, later(phase, begin_ns, end_ns))
    left = only(path)
    assert left["code"] == IMPOSSIBLE_RECORD
    assert words in left["reason"] and "rank 0" in left["reason"] and "line " in left["reason"]


def test_what_goes_on_behind_a_stall_may_end_after_it_but_not_begin_before(tmp_path: Path) -> None:
    found = list(lines())
    save = next(each for each in found if isinstance(each, r.Save))
    for begin, end, fine in ((0, 10**12, True), (-(10**12), 0, False)):
        behind = r.Span(
            generation=save.generation, phase=r.BACKGROUND, begin_ns=save.begin_ns + begin, end_ns=save.end_ns + end
        )
        more = [*found[:-1], behind, found[-1]]
        assert quick(more) is fine
        assert (impossible(more) is None) is fine


@pytest.mark.parametrize("leg", ["train", "control"])
@pytest.mark.parametrize(("seconds", "refused"), [(0.3, False), (1000.0, True)])
def test_a_window_far_longer_than_its_peers_is_refused(
    tmp_path: Path, leg: str, seconds: float, refused: bool
) -> None:
    """The overhead is taken from the longest window: one wrong rank would be the whole run's."""
    path = plant(tmp_path, Plan(nodes=2))

    def longer(record: r.Record) -> r.Record:
        if not isinstance(record, r.Window):
            return record
        return msgspec.structs.replace(record, end_ns=record.end_ns + round(seconds * 1e9))

    changed(path, 1, longer, leg)
    if not refused:
        assert taken(path).runs.height == 1
        return
    left = only(path)
    assert left["code"] == IMPOSSIBLE_RECORD
    assert f"leg {leg}, rank 1: its window lasts 100" in left["reason"] and "rank 0's" in left["reason"]


def test_one_rank_has_no_peers() -> None:
    window = r.Window(begin_ns=0, end_ns=10**15, steps=1, saves=0, paused_ns=0)
    assert impossible_windows({0: [window]}) is None
    assert impossible_windows({}) is None
