"""`python -m analysis collect`: all tables as Parquet, what was not counted by name, progress for long work."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from analysis import collect_command
from analysis.collect import collect
from analysis.tables import TABLES
from hpcckpt.errors import ExitCode, RunError, SpecError
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant_all

PLANS = [Plan(repeat=number, log="darshan", generations=2) for number in (1, 2)]


def test_all_tables_are_written_and_a_reject_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign, out = plant_all(tmp_path / "runs", PLANS), tmp_path / "new" / "tables"
    assert collect_command.main([str(campaign), "--out", str(out)]) == ExitCode.OK
    said = capsys.readouterr()
    assert said.out.startswith(f"2 runs collected to {out}\n")
    assert "rank_saves" in said.out
    assert said.err == "", "no progress for short work"
    expected = collect([campaign])
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{table}.parquet" for table in TABLES)
    for table in TABLES:
        assert pl.read_parquet(out / f"{table}.parquet").equals(getattr(expected, table)), table
    bad = RunDir(campaign / PLANS[0].run_id).leg("train").rank_file(1)
    bad.write_bytes(bad.read_bytes()[:-9])
    assert collect_command.main([str(campaign), "--out", str(out), "--fresh"]) == ExitCode.RUNS_FAILED
    said = capsys.readouterr()
    assert "left out: 1" in said.out
    assert f"run planted/{PLANS[0].run_id}: half_line: leg train, rank 1: line" in said.out
    assert str(bad) in said.out


def test_the_newest_campaign_is_meant_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_all(tmp_path / "runs", PLANS[:1])
    monkeypatch.setenv("HPCCKPT_RUNS", str(tmp_path / "runs"))
    assert collect_command.main(["--out", str(tmp_path / "out")]) == ExitCode.OK
    assert "1 run collected" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(RunError, match="no campaign"):
        collect_command.main(["--out", str(tmp_path / "out")])
    with pytest.raises(SpecError, match="no such directory"):
        collect_command.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")])


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_said_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    now = 100.0
    monkeypatch.setattr(collect_command.time, "monotonic", lambda: now)
    progress = collect_command.Progress(terminal)
    progress(0, 3, Path("a"))
    now += collect_command.QUIET_S + 0.01
    progress(1, 3, Path("b"))
    progress(2, 3, Path("c"))
    progress.close()
    said = capsys.readouterr()
    assert said.out == ""
    words = "1 of 3 runs collected, next b"
    assert said.err == (f"\r\033[K{words}\r\033[K" if terminal else f"{words}\n")
