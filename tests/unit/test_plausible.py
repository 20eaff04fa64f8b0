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

from analysis.readers.plausible import impossible, possible
from analysis.readers.ranks import IMPOSSIBLE_RECORD
from hpcckpt import records as r
from hpcckpt.rundir import RunDir
from tests.unit.collecting import only
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
