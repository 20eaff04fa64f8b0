"""CPU time, GPU samples, reads, steps, and when ranks wrote at once: from records to columns, old traces included."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from analysis.collect import collect
from hpcckpt import records as r
from hpcckpt.rundir import RunDir, write_bytes
from tests.unit.collecting import taken
from tests.unit.planted import Plan, plant


def edited(path: Path, rank: int, change: Callable[[list[r.Record]], list[r.Record]], leg: str = "train") -> None:
    """The rank's file with its records changed."""
    file = RunDir(path).leg(leg).rank_file(rank)
    lines = [r.decode(line) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"".join(map(r.encode, change(lines))))


def with_fields(kind: type[r.Record], **fields: object) -> Callable[[list[r.Record]], list[r.Record]]:
    return lambda lines: [
        msgspec.structs.replace(line, **fields) if isinstance(line, kind) else line for line in lines
    ]


def test_cpu_time_is_taken_where_it_was_recorded(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    edited(path, 0, with_fields(r.Save, cpu_ns=30_000_000))
    edited(path, 0, with_fields(r.Window, cpu_ns=1_500_000_000))
    found = taken(path)
    assert found.rank_saves.select("rank", "cpu_s").unique().sort("rank").rows() == [(0, 0.03), (1, None)]
    windows = found.windows.filter(leg="train").sort("rank")
    assert windows["cpu_s"].to_list() == [1.5, None]


def test_gpu_samples_inside_the_stall_are_averaged(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())

    def sampled(lines: list[r.Record]) -> list[r.Record]:
        first = next(line for line in lines if isinstance(line, r.Save))
        times = [first.end_ns + 1, first.begin_ns, first.begin_ns - 1, first.end_ns]
        return [*lines[:-1], r.Gpu(t_ns=times, busy=[1.0, 0.25, 1.0, 0.5], reason=None), lines[-1]]

    edited(path, 0, sampled)
    edited(path, 1, lambda lines: [*lines[:-1], r.Gpu(t_ns=[], busy=[], reason="no GPU: none"), lines[-1]])
    found = taken(path).rank_saves.sort("generation", "rank").select("gpu_busy", "gpu_reason").rows()
    assert found[0] == (0.375, None)
    assert found[1] == (None, "no GPU: none")
    assert found[2] == (None, "no GPU sample fell into the stall")
    old = taken(plant(tmp_path, Plan(repeat=2))).rank_saves
    assert set(old.select("gpu_busy", "gpu_reason").rows()) == {(None, "no GPU samples in this trace")}


def test_reads_say_how_long_and_from_where(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    edited(path, 0, with_fields(r.Verified, read_ns=250_000_000, cached=0.75))
    found = taken(path).reads
    assert found.drop("run").rows() == [(g, 0, True, 4, 0.25, 0.75, None) for g in (0, 2)]
    old = taken(plant(tmp_path, Plan(repeat=2, verified=None))).reads
    assert old.drop("run").rows() == [(g, 0, None, 4, None, None, "not verified: planted") for g in (0, 2)]


def test_a_step_lasts_as_long_as_on_its_slowest_rank(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(steps_s=0.1))

    def slower(lines: list[r.Record]) -> list[r.Record]:
        longer = {0: 9_000_000_000, 3: 400_000_000}
        return [
            msgspec.structs.replace(line, end_ns=line.end_ns + longer.get(line.index, 0))
            if isinstance(line, r.Step)
            else line
            for line in lines
        ]

    edited(path, 1, slower)
    edited(path, 0, lambda lines: [line for line in lines if not isinstance(line, r.Step)], "control")
    edited(path, 1, lambda lines: [line for line in lines if not isinstance(line, r.Step)], "control")
    rows = {row["leg"]: row for row in taken(path).steps.to_dicts()}
    assert (rows["train"]["steps"], rows["train"]["step_median_s"]) == (6, pytest.approx(0.1))
    assert rows["train"]["step_max_s"] == pytest.approx(0.5), "the first step, which warms up, is left out"
    assert rows["control"] | {"run": ""} == {
        "run": "", "leg": "control", "steps": 0, "step_median_s": None, "step_max_s": None,
    }  # fmt: skip


def test_ranks_that_write_at_once_and_in_turn(tmp_path: Path) -> None:
    """Ranks 0 and 1 write together, rank 2 when they are done, whatever their clocks show."""
    offsets = {1: -40_000_000_000, 2: 7_000_000_000}
    plan = Plan(nodes=4, writers=(0, 1, 2), log="darshan", offset_ns=offsets, slow_s={2: 0.05})
    for save in collect([plant(tmp_path, plan)]).saves.iter_rows(named=True):
        assert save["writing_s"] == pytest.approx(0.1, abs=1e-5)
        assert save["writers_at_once_max"] == 2
        assert save["writers_at_once_mean"] == pytest.approx(1.5, abs=1e-3)
        assert save["writing_reason"] is None


def test_calls_of_one_rank_that_overlap_are_one_writer(tmp_path: Path) -> None:
    save = taken(plant(tmp_path, Plan())).saves.row(0, named=True)
    assert (save["writers_at_once_max"], save["writers_at_once_mean"]) == (1, 1.0)
    assert save["writing_s"] == pytest.approx(0.05)


def test_when_ranks_wrote_is_not_known_without_all_calls_and_clocks(tmp_path: Path) -> None:
    columns = ["writing_s", "writers_at_once_max", "writers_at_once_mean"]
    unseen = taken(plant(tmp_path, Plan(nodes=2, writers=(0, 1), share_of={1: 0.5}))).saves
    assert set(unseen.select(columns).rows()) == {(None, None, None)}
    assert unseen["writing_reason"][0] == "rank 1: the calls with times hold 5000000 of 10000000 bytes"
    untraced = taken(plant(tmp_path, Plan(repeat=2, log="none"))).saves
    assert untraced["writing_reason"][0] == "rank 0: no I/O log of this rank"
    path = plant(tmp_path, Plan(repeat=3))
    for rank in (0, 1):
        edited(path, rank, lambda lines: [line for line in lines if not isinstance(line, r.Clock)])
    edited(path, 1, with_fields(r.Start, boot_id="other"))
    clockless = taken(path).saves
    assert clockless["writing_reason"][0] == "rank 0: clocks of the hosts were not compared"


def test_nobody_wrote_inside_the_stalls(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(writers=(), generations=1))
    saves = taken(path).saves.row(0, named=True)
    assert (saves["writing_s"], saves["writers_at_once_max"], saves["writers_at_once_mean"]) == (0.0, 0, None)
    assert saves["writing_reason"] == "no write call inside the stalls"
    side = RunDir(path).leg("train").rank_darshan(0) / "planted.json"
    write_bytes(side, json.dumps([["/scratch/planted/train/generation-00000/x", 1, 2, 8]]).encode())
    later = taken(path)
    assert later.saves["writing_s"].to_list() == [0.0], "written in the background, before or after the stall"
    assert later.writers["write_s"].to_list() == [0.0]
