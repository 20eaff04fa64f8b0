"""Faults planted in a run of many ranks, with genuine Darshan logs: each alone, and all together, is in the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.collect import collect
from tests.unit.planted_faults import FAULTS, campaign, missed, plan

RANKS, CHECKPOINTS = 16, 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is_and_only_there(tmp_path: Path, fault: str) -> None:
    planted, sound = plan(RANKS, [fault], CHECKPOINTS), plan(RANKS, [], CHECKPOINTS, repeat=2)
    tables = collect([campaign(tmp_path / "faulty", [planted])])
    assert tables.left_out.height == 0
    assert tables.rank_saves.height == RANKS * CHECKPOINTS
    assert missed(tables, planted, [fault]) == []
    without = collect([campaign(tmp_path / "sound", [sound])])
    assert missed(without, planted, [fault]) == [fault]


def test_all_faults_at_once(tmp_path: Path) -> None:
    planted = plan(RANKS, FAULTS, CHECKPOINTS)
    assert missed(collect([campaign(tmp_path, [planted])]), planted, FAULTS) == []
