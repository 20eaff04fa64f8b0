"""Run directories with planted truth, whole and damaged, through `analysis.collect`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import tables as schema
from analysis.collect import collect
from analysis.locate import find_runs, newest_campaign
from analysis.readers.trace import Calls
from hpcckpt.errors import RunError, SpecError
from hpcckpt.experiment import Fault
from hpcckpt.records import Save, Span, decode, encode
from hpcckpt.rundir import RunDir, write_bytes
from tests.unit.collecting import only, taken
from tests.unit.planted import GOLDEN, Plan, plant, plant_all

DATA = Path(__file__).parents[1] / "data" / "run-schema-1"


def test_phases_of_the_slowest_rank_add_up_to_its_stall(tmp_path: Path) -> None:
    found = taken(plant(tmp_path, Plan(nodes=4, sync_s=0.3)))
    assert found.left_out.height == 0
    save = found.saves.row(1, named=True)
    expected = {
        "gather_s": 0.01,
        "serialize_s": 0.02,
        "serialize_write_s": 0.0,
        "write_s": 0.05,
        "sync_s": 0.3,
        "commit_s": 0.001,
        "wait_inside_s": 0.0,
        "wait_after_s": 0.0,
    }
    for column, seconds in expected.items():
        assert save[column] == pytest.approx(seconds), column
    assert save["split"] == "traced"
    assert save["stall_s"] == pytest.approx(sum(expected.values()))
    assert save["release_s"] == pytest.approx(0.0)
    assert save["slowest"] == 0
    assert save["others_wait_after_s"] == pytest.approx(0.371)
    assert save["idle_rank_s"] == pytest.approx(3 * 0.371)
    assert save["unattributed_max_s"] == pytest.approx(0.0, abs=1e-12)
    assert (save["writers_seen"], save["writers_declared"]) == (1, 1)
    assert (save["coverage_min"], save["coverage_ok"]) == (1.0, True)
    assert save["checkpoint_bytes"] == 10_000_000
    assert save["effective_gb_per_s"] == pytest.approx(0.01 / save["stall_s"])


def test_write_is_the_union_of_overlapping_calls(tmp_path: Path) -> None:
    """The planted calls overlap by a fifth; their sum would be 1.2 times the write time."""
    save = taken(plant(tmp_path, Plan(write_s=0.5))).saves.row(0, named=True)
    assert save["write_s"] == pytest.approx(0.5)


def test_sleep_inside_rank_5s_save_is_in_the_stall_and_names_rank_5(tmp_path: Path) -> None:
    plain = taken(plant(tmp_path, Plan(nodes=8))).saves.row(0, named=True)
    save = taken(plant(tmp_path, Plan(nodes=8, repeat=2, slow_s={5: 2.0}))).saves.row(0, named=True)
    assert save["stall_s"] >= 2.0
    assert save["slowest"] == 5
    assert save["wait_before_s"] == plain["wait_before_s"] == 0.0


def test_sleep_before_rank_5s_save_is_waited_for_and_in_no_stall(tmp_path: Path) -> None:
    plain = taken(plant(tmp_path, Plan(nodes=8))).saves.row(0, named=True)
    found = taken(plant(tmp_path, Plan(nodes=8, repeat=2, late_s={5: 2.0})))
    save = found.saves.row(0, named=True)
    assert save["wait_before_s"] >= 2.0
    assert save["last_to_arrive"] == 5
    assert save["late_by_s"] == pytest.approx(2.0)
    assert save["stall_s"] == pytest.approx(plain["stall_s"])
    ranks = found.rank_saves.filter(pl.col("generation") == 0)
    waited = dict(ranks.select("rank", "wait_before_s").rows())
    assert waited[5] == 0.0
    assert min(seconds for rank, seconds in waited.items() if rank != 5) >= 2.0


def test_slow_writer_0_is_carried_by_wait_after_of_the_others(tmp_path: Path) -> None:
    save = taken(plant(tmp_path, Plan(nodes=8, slow_s={0: 2.0}))).saves.row(0, named=True)
    assert save["slowest"] == 0
    assert save["others_wait_after_s"] >= 2.0
    assert save["wait_after_s"] == 0.0


def test_clock_offsets_of_either_sign_do_not_change_who_came_last(tmp_path: Path) -> None:
    offsets = {1: -3_000_000_000, 2: 7_000_000_000, 3: -1}
    found = taken(plant(tmp_path, Plan(nodes=4, late_s={2: 0.5}, offset_ns=offsets)))
    save = found.saves.row(0, named=True)
    assert save["last_to_arrive"] == 2
    assert save["late_by_s"] == pytest.approx(0.5)
    assert save["clock_error_s"] == pytest.approx(5e-6)
    assert save["split"] == "traced"
    begins = found.rank_saves.filter(pl.col("generation") == 0)["begin_ns"].unique()
    assert begins.len() == 1, "all leave the barrier at one time of the common clock"


def test_offset_is_linear_between_measurements_and_constant_outside() -> None:
    from analysis.rank_leg import offset_ns
    from hpcckpt.records import Clock

    clocks = [
        Clock(t_ns=t, offset_ns=o, error_ns=1, method="ping_pong") for t, o in ((1000, -50), (2000, 50))
    ]
    assert [offset_ns(clocks, t) for t in (0, 1000, 1500, 1750, 2000, 9000)] == [-50, -50, 0, 25, 50, 50]
    assert offset_ns([], 5) is None


def test_phases_scatter_and_unexplained_time_make_up_the_stall(tmp_path: Path) -> None:
    """Rank 1 is let go 5 ms after rank 0, the slowest: the stall is rank 1's, the phases are rank 0's."""
    path = plant(tmp_path, Plan(gap_s={0: 0.003}))
    file = RunDir(path).leg("train").rank_file(1)
    later = []
    for line in map(decode, file.read_bytes().splitlines()):
        after = isinstance(line, Span) and line.phase == "wait_after"
        moved = {"end_ns": line.end_ns + 5_000_000} if isinstance(line, Save) or after else {}  # type: ignore[attr-defined]
        later.append(encode(msgspec.structs.replace(line, **moved)))
    file.write_bytes(b"".join(later))
    for save in taken(path).saves.iter_rows(named=True):
        assert (save["slowest"], save["release_s"]) == (0, pytest.approx(0.005))
        assert save["unattributed_s"] == pytest.approx(0.003)
        parts = sum(save[column] for column in schema.PHASE_COLUMNS.values())
        assert parts + save["unattributed_s"] + save["release_s"] == pytest.approx(save["stall_s"])


def test_one_rank_alone(tmp_path: Path) -> None:
    save = taken(plant(tmp_path, Plan(nodes=1))).saves.row(0, named=True)
    assert (save["slowest"], save["idle_rank_s"], save["others_wait_after_s"]) == (0, 0.0, None)
    assert save["clock_reason"] is not None
    assert save["slower_by_s"] is None


def test_no_checkpoints_at_all(tmp_path: Path) -> None:
    found = taken(plant(tmp_path, Plan(generations=0)))
    assert (found.runs.height, found.saves.height, found.left_out.height) == (1, 0, 0)
    verdicts = dict(found.laws.select("law", "verdict").rows())
    assert verdicts["L1_coverage"] == verdicts["L4_readback"] == "not_measured"


@pytest.mark.parametrize("log", ["none", "planted"])
def test_composite_is_split_only_with_a_trace(tmp_path: Path, log: str) -> None:
    found = taken(plant(tmp_path, Plan(log=log)))
    save = found.saves.row(0, named=True)
    if log == "planted":
        assert (save["serialize_write_s"], save["split"]) == (0.0, "traced")
    else:
        assert (save["serialize_s"], save["write_s"]) == (None, None)
        assert save["serialize_write_s"] == pytest.approx(0.07)
        assert save["split"] == "not measured: no I/O log of this rank"
        assert save["writers_seen"] is None
        assert save["coverage_min"] is None
        assert "no I/O log" in save["coverage_reason"]
        assert "no I/O log" in save["trace_reason"]


def test_trace_that_misses_bytes_breaks_law_1_and_splits_nothing(tmp_path: Path) -> None:
    found = taken(plant(tmp_path, Plan(traced_share=0.5)))
    save = found.saves.row(0, named=True)
    assert (save["coverage_min"], save["coverage_ok"], save["write_s"]) == (0.5, False, None)
    assert "5000000 of 10000000 bytes" in save["split"]
    run = found.runs.row(0, named=True)
    assert run["trusted"], "the timers are right all the same"
    assert any(flag.startswith("L1_coverage") for flag in run["flags"])


def test_the_formats_own_interval_is_taken_from_the_run(tmp_path: Path) -> None:
    wide = taken(plant(tmp_path, Plan(traced_share=0.5, expected_coverage="0.4,0.6")))
    assert wide.saves["coverage_ok"].to_list() == [True] * 3
    bad = plant(tmp_path, Plan(repeat=2, expected_coverage="much"))
    assert only(bad)["code"] == "unreadable"


def test_unattributed_time_flags_the_checkpoint_and_names_no_other_law(tmp_path: Path) -> None:
    found = taken(plant(tmp_path, Plan(gap_s={1: 0.004})))
    assert found.saves["unattributed_ok"].to_list() == [False] * 3
    assert found.saves["unattributed_max_s"][0] == pytest.approx(0.004)
    assert [f.partition(":")[0] for f in found.runs["flags"][0]] == ["L2_unattributed"]
    assert taken(plant(tmp_path, Plan(repeat=2, gap_s={1: 0.0009}))).saves["unattributed_ok"].all()


def test_writers_seen_differ_from_writers_declared(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(nodes=2))
    side = RunDir(path).leg("train").rank_darshan(1) / "planted.json"
    write_bytes(side, json.dumps([["/scratch/planted/train/generation-00000/x", 1, 2, 8]]).encode())
    found = taken(path)
    assert found.saves["writers_seen"].to_list() == [2, 1, 1]
    assert any(flag.startswith("writers: 2 seen, 1 declared") for flag in found.runs["flags"][0])
    assert found.writers.filter(pl.col("generation") == 0)["rank"].to_list() == [0, 1]


def test_overhead_is_window_against_control_without_pauses(tmp_path: Path) -> None:
    plan = Plan(step_extra_s=0.01, pause_s=5.0)
    run = taken(plant(tmp_path, plan)).runs.row(0, named=True)
    stall = 0.081
    assert run["overhead_per_checkpoint_s"] == pytest.approx(stall + plan.interval_steps * 0.01)
    assert run["overhead_fraction"] == pytest.approx(run["overhead_s"] / 0.6)
    assert run["interval_s"] == pytest.approx(0.2)
    assert run["deferred_s"] == 0.25


def test_without_control_there_is_a_reason_and_no_overhead(tmp_path: Path) -> None:
    run = taken(plant(tmp_path, Plan(control=False))).runs.row(0, named=True)
    assert (run["overhead_s"], run["overhead_fraction"], run["interval_s"]) == (None, None, None)
    assert run["overhead_reason"] == "no control leg"


def test_durable_run_on_a_file_system_without_device(tmp_path: Path) -> None:
    run = taken(plant(tmp_path, Plan(durable=True, probe_reason="tmpfs"))).runs.row(0, named=True)
    assert run["durable_reason"] == "no device behind fsync (tmpfs)"
    assert taken(plant(tmp_path, Plan(probe_reason="tmpfs"))).runs["durable_reason"][0] is None


@pytest.mark.parametrize(
    ("plan", "law"),
    [(Plan(digest={1: "other"}), "L3_replicas"), (Plan(verified=False), "L4_readback")],
)
def test_a_broken_decisive_law_is_listed_and_the_run_untrusted(tmp_path: Path, plan: Plan, law: str) -> None:
    found = taken(plant(tmp_path, plan))
    assert found.runs["trusted"].to_list() == [False]
    left = found.left_out.row(0, named=True)
    assert (left["scope"], left["code"]) == ("run", "law_broken")
    assert left["reason"].startswith(law)
    assert law != "L3_replicas" or "rank 1" in left["reason"]


def test_not_verified_is_neither_kept_nor_broken(tmp_path: Path) -> None:
    found = taken(plant(tmp_path, Plan(verified=None)))
    law = found.laws.filter(pl.col("law") == "L4_readback").row(0, named=True)
    assert (law["verdict"], found.left_out.height) == ("not_measured", 0)
    assert "not verified" in law["detail"]


def test_empty_and_foreign_darshan_logs_are_left_out_and_the_timers_kept(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"not a log at all" * 400), start=1):
        path = plant(tmp_path, Plan(repeat=number, log="darshan"))
        log = next(RunDir(path).leg("train").rank_darshan(0).glob("*.darshan"))
        log.unlink()  # logs are read-only
        log.write_bytes(content)
        found = collect([path])
        left = found.left_out.row(0, named=True)
        assert (left["scope"], left["code"], left["file"]) == ("trace", "bad_trace_log", str(log))
        save = found.saves.row(0, named=True)
        assert save["stall_s"] > 0
        assert save["writers_seen"] is None
        assert save["coverage_min"] is None
        assert save["coverage_reason"].startswith("rank 0")


def test_genuine_darshan_logs_give_the_planted_truth(tmp_path: Path) -> None:
    plan = Plan(nodes=2, writers=(0, 1), log="darshan", offset_ns={1: -40_000_000_000})
    found = collect([plant(tmp_path, plan)])
    assert found.left_out.height == 0
    for save in found.saves.iter_rows(named=True):
        assert (save["writers_seen"], save["coverage_min"], save["split"]) == (2, 1.0, "traced")
        assert save["write_s"] == pytest.approx(plan.write_s, abs=1e-5)
        assert save["serialize_s"] == pytest.approx(plan.serialize_s, abs=1e-5)


def test_generations_that_share_a_directory_are_told_apart_by_time(tmp_path: Path) -> None:
    found = collect([plant(tmp_path, Plan(one_directory=True, log="darshan"))])
    for save in found.saves.iter_rows(named=True):
        assert (save["writers_seen"], save["coverage_min"], save["split"]) == (1, 1.0, "traced")
        assert save["write_s"] == pytest.approx(0.05, abs=1e-5)
    path = plant(tmp_path, Plan(repeat=2, one_directory=True, log="darshan"))
    file = RunDir(path).leg("train").rank_file(0)
    lines = [line for line in file.read_bytes().splitlines(keepends=True) if b'"beacon"' not in line]
    file.write_bytes(b"".join(lines))
    save = collect([path]).saves.row(0, named=True)
    assert (save["writers_seen"], save["coverage_min"], save["write_s"]) == (None, None, None)
    assert "share a directory" in save["trace_reason"]


def test_without_beacon_bytes_are_known_and_times_are_not(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(log="darshan"))
    file = RunDir(path).leg("train").rank_file(0)
    lines = [line for line in file.read_bytes().splitlines(keepends=True) if b'"beacon"' not in line]
    file.write_bytes(b"".join(lines))
    save = collect([path]).saves.row(0, named=True)
    assert (save["writers_seen"], save["coverage_min"], save["write_s"]) == (1, 1.0, None)
    assert "beacon" in save["split"]


def test_ranks_without_anything_replicated_have_no_law_3(tmp_path: Path) -> None:
    plan = Plan(digest={1: "other"}, digest_reason="no parameter is replicated")
    law = taken(plant(tmp_path, plan)).laws.filter(pl.col("law") == "L3_replicas").row(0, named=True)
    assert (law["verdict"], law["detail"]) == ("not_measured", "no parameter is replicated")


def test_inventory_absent_or_unreadable(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    inventory = RunDir(path).leg("train").inventory
    inventory.write_bytes(b"PAR1 no")
    found = taken(path)
    assert found.left_out["code"].to_list() == ["bad_inventory"]
    assert found.saves["checkpoint_bytes"].to_list() == [None] * 3
    assert "cannot be read" in found.saves["bytes_reason"][0]
    inventory.unlink()
    assert taken(path).saves["bytes_reason"][0] == "no inventory of the files"


def test_planted_faults_and_commits_are_in_the_rows(tmp_path: Path) -> None:
    fault = Fault(rank=1, at="gather", action="sleep", seconds=2.0)
    run = taken(plant(tmp_path, Plan(faults=[fault], commit=None))).runs.row(0, named=True)
    assert run["faults"] == "rank 1 sleep 2 s at gather (train)"
    assert run["commit"] == "not recorded"


def test_overlapping_runs_are_flagged(tmp_path: Path) -> None:
    plans = [Plan(started=100.0), Plan(repeat=2, started=105.0), Plan(repeat=3, started=200.0)]
    flags = taken(plant_all(tmp_path, plans)).runs.sort("repeat")["flags"].to_list()
    assert [bool(each) for each in flags] == [True, True, False]
    assert plans[1].run_id in flags[0][0]


def test_roots_campaigns_and_runs_can_be_named_together_and_count_once(tmp_path: Path) -> None:
    campaign = plant_all(tmp_path, [Plan(), Plan(repeat=2)])
    plant_all(tmp_path, [Plan(campaign="second")])
    assert len(find_runs([tmp_path])) == 3
    assert len(find_runs([campaign, campaign / Plan().run_id, tmp_path])) == 3
    with pytest.raises(SpecError, match="no such directory"):
        find_runs([tmp_path / "nothing"])


def test_newest_campaign_is_the_one_submitted_last(tmp_path: Path) -> None:
    import os

    for age, name in ((300, "b"), (100, "a"), (200, "c")):
        ledger = plant_all(tmp_path, [Plan(campaign=name)]) / "campaign.json"
        os.utime(ledger, (10**9 - age, 10**9 - age))
    assert newest_campaign(tmp_path).name == "a"
    with pytest.raises(RunError, match="no campaign"):
        newest_campaign(tmp_path / "empty")


def test_tables_have_exactly_their_columns_and_go_through_parquet(tmp_path: Path) -> None:
    found = taken(plant(tmp_path, Plan()))
    for path in found.write_parquet(tmp_path / "tables"):
        columns = schema.TABLES[path.stem]
        back = pl.read_parquet(path)
        assert back.schema == {name: kind for name, (kind, _) in columns.items()}
        assert back.equals(getattr(found, path.stem))
        assert all(doc for _, doc in columns.values())


def test_golden_run_of_schema_1_still_reads(tmp_path: Path) -> None:
    found = collect([DATA])
    assert found.left_out.height == 0
    fresh = collect([plant(tmp_path, GOLDEN)])
    drop = ["run", "campaign", "path"]
    assert found.runs.drop(drop).equals(fresh.runs.drop(drop))
    for name in ("saves", "rank_saves", "windows", "writers", "laws"):
        assert getattr(found, name).drop("run").equals(getattr(fresh, name).drop("run")), name
    assert found.saves["write_s"].to_list() == pytest.approx([GOLDEN.write_s] * 2, abs=1e-5)


def test_a_bad_run_does_not_stop_the_others(tmp_path: Path) -> None:
    plans = [Plan(repeat=number) for number in range(1, 5)]
    campaign = plant_all(tmp_path, plans)
    RunDir(campaign / plans[0].run_id).run.write_text("{")
    RunDir(campaign / plans[1].run_id).leg("train").rank_file(0).write_bytes(b"{")
    found = taken(campaign)
    assert found.runs["repeat"].to_list() == [3, 4]
    assert found.left_out["code"].to_list() == ["unreadable", "half_line"]
    assert replace(plans[0], repeat=3).run_id in found.runs["run"][0]


def test_one_boot_needs_no_clock_records_several_do(tmp_path: Path) -> None:
    """Without Clock lines, ranks of one kernel share its clock; those of several cannot be compared."""
    path = plant(tmp_path, Plan(late_s={1: 0.5}))
    for rank in (0, 1):
        file = RunDir(path).leg("train").rank_file(rank)
        lines = [x for x in file.read_bytes().splitlines(keepends=True) if b'"type":"clock"' not in x]
        file.write_bytes(b"".join(lines))
    assert taken(path).saves["last_to_arrive"].to_list() == [1] * 3
    file.write_bytes(file.read_bytes().replace(b'"boot_id":"boot"', b'"boot_id":"other"'))
    save = taken(path).saves.row(0, named=True)
    assert (save["last_to_arrive"], save["late_by_s"]) == (None, None)
    assert save["clock_reason"] == "clocks of the hosts were not compared"


def test_ranks_that_saw_different_checkpoints_are_not_taken(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    file = RunDir(path).leg("train").rank_file(1)
    lines = file.read_bytes().splitlines(keepends=True)
    saves = [i for i, line in enumerate(lines) if b'"type":"save"' in line]
    file.write_bytes(b"".join(lines[: saves[1]] + lines[saves[1] + 1 :]))
    assert only(path)["code"] == "bad_saves"
    file.write_bytes(b"".join(lines[: saves[1]] + lines[saves[0] : saves[0] + 1] + lines[saves[1] :]))
    assert only(path)["code"] == "bad_saves"


@given(
    st.lists(st.tuples(st.integers(-5, 40), st.integers(0, 12)), max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_union_of_calls_is_what_counting_instants_gives(
    calls: list[tuple[int, int]], low: int, length: int
) -> None:
    begin = np.array([b for b, _ in calls], dtype=np.int64)
    end = np.array([b + d for b, d in calls], dtype=np.int64)
    busy = {t for b, e in zip(begin, end, strict=True) for t in range(b, e) if low <= t < low + length}
    assert Calls(begin_ns=begin, end_ns=end, length=end).union_ns(low, low + length) == len(busy)
