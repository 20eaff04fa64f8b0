"""Tests of restart under the real driver, on real ranks: exact, differing by a planted cause, and after a death."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis.collect import collect
from analysis.restart_determinism import RestartDeterminism
from hpcckpt.experiment import Fault
from hpcckpt.records import Comparison, RestartReport
from hpcckpt.rundir import DONE, FAILED, QUEUED, RunDir, State, read_json, write_json
from jobs.driver import Driver
from jobs.ranks import closed
from tests.unit.restarting import job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SITE = {
    "name": "local", "executor": "local", "launcher": "mpirun", "launcher_args": [],
    "environment": {"OMPI_MCA_btl": "^ofi"},
}  # fmt: skip


def drive(base: Path, faults: list[Fault] | None = None, **changes: Any) -> tuple[State, RestartReport, RunDir]:
    """Run all legs, as a campaign would."""
    paths, made = job(base, faults, **changes)
    made = msgspec.structs.replace(made, site=SITE, scratch=str(base / "scratch" / "c" / made.run.run_id))
    write_json(paths.run, made)
    write_json(paths.state, State(state=QUEUED, updated=time.time()))
    Driver(paths.path)()
    state = paths.read_state()
    assert state.state == DONE, state.reason
    assert closed(paths, made.run)
    assert not Path(made.scratch).exists(), "states and checkpoints are deleted"
    return state, read_json(paths.restart, RestartReport), paths


def leg(found: RestartReport, name: str) -> Comparison:
    return next(each for each in found.comparisons if each.leg == name)


def test_an_exact_restart_on_real_ranks(tmp_path: Path) -> None:
    _, found, paths = drive(tmp_path, restart={"elsewhere": [1]}, settings={"steps": 4})
    assert [(each.leg, each.exact) for each in found.comparisons] == [
        ("again", True), ("train", True), ("restored", True), ("elsewhere-1", True),
    ]  # fmt: skip
    assert found.split and found.split.parts_s.keys() >= {"launch", "start", "read", "first_step"}
    assert "detect" in found.split.reasons and found.split.cached is not None
    answer = RestartDeterminism().answer(collect([paths.path]))
    (row,) = answer.rows
    assert (row["restart_exact"], row["restart_legs"], row["elsewhere_ranks"]) == (1, 1, [1])
    assert not answer.left_out


def test_another_order_of_sums_on_real_ranks(tmp_path: Path) -> None:
    planted = Fault(rank="all", at="restore", action="reorder", leg="restored")
    _, found, _ = drive(tmp_path, [planted], nodes=3, restart={"again": 0}, settings={"steps": 4})
    seen = leg(found, "restored")
    assert seen.first and (seen.first.step, seen.first.kind, seen.cause) == (3, "gradient", "reduction_order")


def test_after_a_death_in_a_save_the_newest_complete_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    _, found, paths = drive(tmp_path, restart={"kill": 0, "again": 0})
    assert leg(found, "restored").exact and leg(found, "train").exact
    split = found.split
    assert split and not split.reasons, "the time from the death on is known whole"
    assert all(seconds >= 0 for seconds in split.parts_s.values()) and split.parts_s["detect"] < 30
    assert '"end"' not in paths.leg("train").rank_file(0).read_text(), "rank 0 had no time for a closing line"
    (row,) = RestartDeterminism().answer(collect([paths.path])).rows
    assert row["killed"] == 0 and row["restart_s"] == pytest.approx(
        sum(seconds for part, seconds in split.parts_s.items() if part != "suite")
    )


def refused(base: Path, faults: list[Fault] | None = None, **changes: Any) -> str:
    """Why the run failed."""
    paths, made = job(base, faults, **changes)
    made = msgspec.structs.replace(made, site=SITE)
    write_json(paths.run, made)
    write_json(paths.state, State(state=QUEUED, updated=time.time()))
    Driver(paths.path)()
    state = paths.read_state()
    assert state.state == FAILED
    return str(state.reason)


def test_a_death_that_never_comes_is_said(tmp_path: Path) -> None:
    reason = refused(tmp_path, restart={"kill": 1, "again": 0})  # a single writer is rank 0
    assert reason == (
        "settings.restart.kill_at: rank 1 never came to phase 'serialize+write' of the save behind step 4; it has "
        "gather, wait_inside there: name another phase, or a rank that writes"
    )


def test_a_death_that_comes_behind_the_save_is_no_death_in_it(tmp_path: Path) -> None:
    slow = Fault(rank="all", at="step", action="sleep", seconds=0.2, leg="train")
    late = {"kill": 0, "kill_after_s": 0.5, "again": 0}
    reason = refused(tmp_path / "late", [slow], restart=late, settings={"steps": 12})
    assert reason.startswith("settings.restart.kill_after_s: rank 0 outlived the save behind step 4")
    reason = refused(tmp_path / "never", restart={**late, "kill_after_s": 500.0})
    assert reason.startswith("settings.restart.kill_after_s: rank 0 outlived the leg")
