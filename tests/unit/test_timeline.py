"""One checkpoint again, call by call, on the common clock."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from analysis.timeline import timeline
from hpcckpt.errors import RunError
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant, read_trace

OFFSETS = {1: -40_000_000_000, 2: 7_000_000_000}


def test_spans_and_calls_lie_where_they_were_planted(tmp_path: Path) -> None:
    plan = Plan(nodes=3, writers=(0, 2), log="darshan", offset_ns=OFFSETS, slow_s={2: 0.5}, late_s={1: 0.25})
    found = timeline(plant(tmp_path, plan), 1)
    assert found.reasons == {}
    spans = {(rank, phase): (begin, end) for rank, _, phase, begin, end in found.spans.rows()}
    assert spans[0, "gather"] == pytest.approx((0.0, 0.01))
    assert spans[2, "gather"] == pytest.approx((0.0, 0.51))
    assert spans[0, "wait_before"] == pytest.approx((-0.25, 0.0))
    assert spans[0, "wait_after"] == pytest.approx((0.081, 0.581))
    calls = found.calls.filter(pl.col("rank") == 2)
    assert calls["bytes"].to_list() == [5_000_000, 5_000_000]
    assert calls["begin_s"].to_list() == pytest.approx([0.53, 0.55], abs=1e-4)
    assert calls["end_s"].to_list() == pytest.approx([0.56, 0.58], abs=1e-4)
    assert set(found.calls["rank"]) == {0, 2}, "rank 1 wrote nothing, and that is known"
    assert found.spans.filter(pl.col("rank") == 1)["node"].unique().to_list() == ["virtual001"]


def test_without_a_trace_there_are_spans_and_a_reason(tmp_path: Path) -> None:
    found = timeline(plant(tmp_path, Plan(log="none")), 0)
    assert found.spans.height > 0
    assert found.calls.height == 0
    assert found.reasons == {0: "no I/O log of this rank", 1: "no I/O log of this rank"}


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    with pytest.raises(RunError, match="no generation 3; it holds 0, 1, 2"):
        timeline(path, 3, read_trace)
    with pytest.raises(RunError, match="planned, but its directory is missing"):
        timeline(tmp_path / "nothing", 0)
    for rank in (0, 1):
        file = RunDir(path).leg("train").rank_file(rank)
        lines = [x for x in file.read_bytes().splitlines(keepends=True) if b'"type":"clock"' not in x]
        file.write_bytes(b"".join(lines))
    file.write_bytes(file.read_bytes().replace(b'"boot_id":"boot"', b'"boot_id":"other"'))
    with pytest.raises(RunError, match="clocks of the hosts were not compared"):
        timeline(path, 0, read_trace)
