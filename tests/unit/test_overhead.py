"""The overhead question on planted campaigns: two ways of counting, what explains them, each finding both ways."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from analysis import cli
from analysis.cli import Answer
from analysis.collect import collect
from analysis.finding import Finding
from analysis.overhead import Overhead
from analysis.tables import Tables
from hpcckpt.errors import ExitCode
from tests.unit.planted import Plan, plant_all, read_trace


def tables(root: Path, plans: Sequence[Plan]) -> Tables:
    return collect([plant_all(root, plans)], read_trace)


def answer(root: Path, plans: Sequence[Plan]) -> Answer:
    return Overhead().answer(tables(root, plans))


def finding(found: Answer, code: str) -> Finding:
    mine = [f for f in found.findings if f.code == code]
    assert len(mine) == 1, [f.group for f in mine]
    return mine[0]


def repeats(count: int, **changes: Any) -> list[Plan]:
    base = Plan(**changes)
    return [replace(base, repeat=i + 1, write_s=base.write_s + 0.001 * i) for i in range(count)]


def with_columns(taken: Tables, table: str, **columns: Any) -> Tables:
    return msgspec.structs.replace(taken, **{table: getattr(taken, table).with_columns(**columns)})


def test_both_overheads_of_a_run_without_anything_beside(tmp_path: Path) -> None:
    row = answer(tmp_path, repeats(3, nodes=2)).rows[0]
    assert row["stall_s"] == pytest.approx(0.082)
    assert row["control_s"] == pytest.approx(0.082)
    assert row["slower_steps_s"] == pytest.approx(0.0, abs=1e-6)
    assert row["rest_s"] == pytest.approx(0.0, abs=1e-6)
    assert row["control_fraction"] == pytest.approx(0.082 / 0.2)
    assert row["phases_fraction"] == pytest.approx(0.082 / 0.2)
    assert row["idle_share"] == pytest.approx(0.072 / 2 / 0.082)
    assert (row["phase_write_s"], row["phase_gather_s"]) == (pytest.approx(0.051), pytest.approx(0.01))


def test_ov01_slower_steps_explain_the_difference(tmp_path: Path) -> None:
    found = answer(tmp_path / "a", repeats(3, nodes=2, step_extra_s=0.05))
    row, claim = found.rows[0], finding(found, "OV01")
    assert row["apart_s"] == pytest.approx(0.1)
    assert row["slower_steps_s"] == pytest.approx(0.1)
    assert claim.verdict == "supports"
    assert finding(answer(tmp_path / "b", repeats(1, nodes=2)), "OV01").reason == "one run"
    assert finding(answer(tmp_path / "c", repeats(3, nodes=2, control=False)), "OV01").reason == "no control leg"


def test_ov01_what_nothing_explains_is_said_with_where_to_look(tmp_path: Path) -> None:
    late = answer(tmp_path, repeats(3, nodes=2, late_s={1: 0.3}))
    found = finding(late, "OV01")
    assert (found.verdict, found.level) == ("contradicts", "warning")
    assert found.value == pytest.approx(0.3)
    assert found.recommendation is not None
    assert "wait up to 0.3 s before a save" in found.recommendation


def test_ov02_steps_that_are_slower_or_not(tmp_path: Path) -> None:
    slower = finding(answer(tmp_path / "a", repeats(3, nodes=2, step_extra_s=0.05)), "OV02")
    assert (slower.verdict, slower.value) == ("supports", pytest.approx(0.1))
    assert finding(answer(tmp_path / "b", repeats(3, nodes=2)), "OV02").verdict == "contradicts"
    unsure = [replace(p, step_extra_s=0.05 * (p.repeat - 1)) for p in repeats(3, nodes=2)]
    assert "too large to tell" in (finding(answer(tmp_path / "c", unsure), "OV02").reason or "")


@pytest.mark.parametrize("code", ["OV01", "OV02"])
def test_two_runs_and_runs_that_scatter_give_no_verdict(tmp_path: Path, code: str) -> None:
    """Two runs that agree on -3 s beside a stall of 20 ms, and four whose range is as wide as their distance."""
    two = repeats(2, nodes=2, step_extra_s=-0.05, late_s={1: 0.3})
    assert "2 runs: fewer than 3" in (finding(answer(tmp_path / "a", two), code).reason or "")
    four = [replace(p, step_extra_s=0.03 + 0.005 * p.repeat, late_s={1: 0.01 * p.repeat + 0.02}) for p in repeats(4)]
    found = finding(answer(tmp_path / "b", four), code)
    assert "decide only where all lie 3 times their range beyond" in (found.reason or "")


def test_ov03_compression_needs_smaller_files_and_long_serializing(tmp_path: Path) -> None:
    taken = tables(tmp_path, repeats(2, nodes=2, serialize_s=0.5))
    small = with_columns(taken, "files", logical_bytes=pl.col("file_bytes") * 12 // 10)
    found = finding(Overhead().answer(small), "OV03")
    assert (found.verdict, found.value) == ("supports", pytest.approx(0.5 / 0.0505))
    assert "compressed files, with their containers 16.7 % smaller" in found.sentence
    assert found.for_developers
    assert finding(Overhead().answer(taken), "OV03").verdict == "contradicts"
    quick = with_columns(tables(tmp_path / "b", repeats(2, nodes=2)), "files", logical_bytes=pl.col("file_bytes") * 2)
    assert finding(Overhead().answer(quick), "OV03").verdict == "contradicts"
    untraced = answer(tmp_path / "c", repeats(2, nodes=2, log="none"))
    assert "no I/O log" in (finding(untraced, "OV03").reason or "")


def formats(root: Path, tmp: str, container: float, **plain: Any) -> Answer:
    """hdf5, which compresses, beside npz_plain; hdf5's containers make its files larger than the tensors."""
    others = [replace(plan, repeat=plan.repeat + 2) for plan in repeats(2, **plain)]
    taken = tables(root / tmp, [*repeats(2, format="hdf5", serialize_s=0.5), *others])
    larger = pl.when(pl.col("format") == "hdf5").then(1 / container).otherwise(1.0)
    return Overhead().answer(
        with_columns(taken, "files", logical_bytes=(pl.col("file_bytes") * larger).cast(pl.Int64))
    )


def test_ov03_containers_that_outweigh_what_compression_saves(tmp_path: Path) -> None:
    found = {f.group.split(", ")[2]: f for f in formats(tmp_path, "a", 1.25).findings if f.code == "OV03"}
    assert (found["hdf5"].verdict, found["npz_plain"].verdict) == ("supports", "contradicts")
    assert "25.0 % larger than the tensors" in found["hdf5"].sentence
    assert "uncompressed, as npz_plain, serializing takes 0.02 s" in found["hdf5"].sentence
    plain = formats(tmp_path, "b", 1.25, serialize_s=0.4)
    slow = next(f for f in plain.findings if f.code == "OV03" and "hdf5" in f.group)
    assert slow.verdict == "contradicts", "the container takes the time, compressed or not"


def test_ov04_idle_rank_seconds_grow_with_ranks_where_others_wait(tmp_path: Path) -> None:
    grid = [plan for n in (2, 4, 8) for plan in repeats(3, nodes=n)]
    found = finding(answer(tmp_path / "a", grid), "OV04")
    assert (found.verdict, found.value) == ("supports", pytest.approx(0.072, rel=0.02))
    assert (found.level, found.recommendation) == ("info", None)
    real = [replace(plan, virtual_nodes=False) for plan in grid]
    assert "waits for the same writers" in (finding(answer(tmp_path / "e", real), "OV04").recommendation or "")
    slow = [replace(p, writers=tuple(range(p.nodes)), slow_s={0: 0.5}) for p in real]
    assert "wait for the slowest of them" in (finding(answer(tmp_path / "f", slow), "OV04").recommendation or "")
    unrest = [replace(plan, write_s=0.1 * plan.repeat**2) for plan in grid]
    assert "too large to tell" in (finding(answer(tmp_path / "d", unrest), "OV04").reason or "")
    everybody = [replace(plan, writers=tuple(range(plan.nodes))) for plan in grid]
    assert finding(answer(tmp_path / "b", everybody), "OV04").verdict == "contradicts"
    assert finding(answer(tmp_path / "c", repeats(3)), "OV04").verdict == "not_measured"


@pytest.mark.parametrize(("cores", "verdict"), [(0.9, "supports"), (0.1, "contradicts")])
def test_ov05_ranks_that_wait_busily(tmp_path: Path, cores: float, verdict: str) -> None:
    taken = tables(tmp_path, repeats(2, nodes=4))
    busy = with_columns(taken, "rank_saves", cpu_s=pl.col("stall_s") * cores)
    found = finding(Overhead().answer(busy), "OV05")
    assert (found.verdict, found.value) == (verdict, pytest.approx(cores))
    none = pl.lit(None, pl.Float64)
    assert finding(Overhead().answer(with_columns(taken, "rank_saves", cpu_s=none)), "OV05").verdict == "not_measured"


@pytest.mark.parametrize(("busy", "verdict"), [(0.05, "supports"), (0.95, "contradicts")])
def test_ov06_gpus_in_the_stall(tmp_path: Path, busy: float, verdict: str) -> None:
    taken = tables(tmp_path, repeats(2, nodes=2))
    found = finding(Overhead().answer(with_columns(taken, "rank_saves", gpu_busy=pl.lit(busy))), "OV06")
    assert (found.verdict, found.value) == (verdict, pytest.approx(busy))


def test_ov06_without_a_gpu_has_its_reason(tmp_path: Path) -> None:
    taken = tables(tmp_path, repeats(2, nodes=2))
    columns = {"gpu_busy": pl.lit(None, pl.Float64), "gpu_reason": pl.lit("no GPU: no driver")}
    found = Overhead().answer(with_columns(taken, "rank_saves", **columns))
    assert finding(found, "OV06").reason == "no GPU: no driver"
    assert "GPU use is not measured: no GPU: no driver." in found.notes


def test_ov07_waiting_before_the_save(tmp_path: Path) -> None:
    late = finding(answer(tmp_path / "a", repeats(3, nodes=2, late_s={1: 0.3})), "OV07")
    assert (late.verdict, late.value) == ("supports", pytest.approx(0.3))
    assert finding(answer(tmp_path / "b", repeats(3, nodes=2)), "OV07").verdict == "contradicts"
    few = finding(answer(tmp_path / "d", repeats(2, nodes=2, late_s={1: 0.3})), "OV07")
    assert "2 runs: fewer than 3" in (few.reason or "")
    assert finding(answer(tmp_path / "c", repeats(2, nodes=1)), "OV07").reason == "no run has more than one rank"


def test_cpu_of_writers_others_and_training(tmp_path: Path) -> None:
    taken = tables(tmp_path, repeats(2, nodes=4))
    writes = pl.when(pl.col("planned_bytes") > 0).then(pl.col("stall_s") * 1.5).otherwise(pl.col("stall_s") * 0.5)
    taken = with_columns(taken, "rank_saves", cpu_s=writes)
    row = Overhead().answer(with_columns(taken, "windows", cpu_s=pl.col("window_s") * 2)).rows[0]
    assert (row["cpu_writers"], row["cpu_others"], row["cpu_training"]) == pytest.approx((1.5, 0.5, 2.0))
    assert row["cpu_saving"] == pytest.approx(0.75)


def test_the_command_line_and_its_reasons(tmp_path: Path) -> None:
    campaign = plant_all(tmp_path, repeats(2, nodes=2, log="darshan"))
    out, figure = io.StringIO(), tmp_path / "out.svg"
    assert cli.main(Overhead(), [str(campaign), "--figure", str(figure)], out) == ExitCode.OK
    assert "against the control" in figure.read_text()
    for plans in (repeats(1, nodes=1, generations=0), repeats(2, nodes=2, log="none", control=False)):
        question = Overhead()
        for view in question.views(question.answer(tables(tmp_path / plans[0].log, plans))):
            cells = [cell for column in view.columns.values() for cell in column]
            assert "None" not in " ".join(cells)
            assert not any("no reason recorded" in line for line in view.below), view.below
