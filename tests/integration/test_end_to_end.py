"""From an experiment file to the answer: submit on the local site, then ask, with a slow rank planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.collect import collect
from tests.support import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(280)]
SLEEP_S = 1.5

EXPERIMENT = f"""
name = "planted"
question = "Is the slow rank found?"
repeats = 1
axes = {{ framework = ["numpy_toy"], strategy = ["single_writer"], format = ["npz_plain"], nodes = [4] }}

[[faults]]
rank = 2
at = "before_save"
action = "sleep"
seconds = {SLEEP_S}
generation = 0

[[faults]]
rank = 3
at = "gather"
action = "sleep"
seconds = {SLEEP_S}
generation = 1
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the project, as a person in `folder` would call it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campaign")
    (path / "planted.toml").write_text(EXPERIMENT)
    done = run(path, "jobs", "submit", "planted.toml", "--nodes", "4", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    return path


def test_the_answer_names_writer_ranks_and_waits(folder: Path) -> None:
    done = run(folder, "analysis.scaling", "--json", "--figure", "stall.svg", "--csv", "csv")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    assert answer["left_out"] == []
    (row,) = answer["rows"]
    assert "planted faults" in row["group"] and "one machine: mechanism, not scaling" in row["setting"]
    assert (row["nodes"], row["ranks"]) == (4, 4)
    assert (row["writers_seen_min"], row["writers_seen_max"], row["writers_declared_max"]) == (1, 1, 1)
    assert 0.99 <= row["coverage_min"] <= row["coverage_max"] <= 1.05
    assert {finding["code"] for finding in answer["findings"]} >= {"SC01", "SC02", "SC03", "SC04", "SC05"}
    assert (folder / "stall.svg").read_text().startswith("<?xml")
    assert (folder / "csv" / "scaling.csv").stat().st_size > 0


def test_a_late_rank_and_a_slow_rank_are_told_apart(folder: Path) -> None:
    saves = {row["generation"]: row for row in collect([folder / "runs"]).saves.iter_rows(named=True)}
    late, slow = saves[0], saves[1]
    assert late["last_to_arrive"] == 2 and late["wait_before_s"] >= SLEEP_S - 0.05 and late["stall_s"] < SLEEP_S
    assert slow["slowest"] == 3 and slow["stall_s"] >= SLEEP_S and slow["wait_before_s"] < SLEEP_S


def test_traces_are_genuine_darshan_logs_and_scratch_is_empty(folder: Path) -> None:
    logs = sorted((folder / "runs").glob("*/*/legs/train/darshan/rank*/*.darshan"))
    assert len(logs) == 4
    darshan = pytest.importorskip("darshan")
    with darshan.DarshanReport(str(logs[0]), read_all=True) as report:
        assert report.metadata["job"]["nprocs"] == 1
    assert not list(folder.rglob("*.npz")), "checkpoints are deleted when the inventory is written"


def test_submitting_again_repeats_nothing(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/*/state.json")}
    done = run(folder, "jobs", "submit", "planted.toml", "--nodes", "4", "--wait")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/*/state.json")} == before
