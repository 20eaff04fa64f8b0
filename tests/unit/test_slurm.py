"""Campaigns on Slurm as far as the login side goes: what is submitted, asked and marked; with planted answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcckpt.errors import ExitCode, RunError, SubmitError
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, RunDir
from jobs import batch, campaign, reconcile
from jobs.__main__ import main
from jobs.campaign import Campaign
from jobs.driver import Driver
from jobs.lock import Lock
from tests.unit.fake_slurm import calls, install

SITE = """
name = "fake"
executor = "slurm"
launcher = "mpirun"
size = "small"
scratch = "{base}/scratch"
partition = "main"
tracer = "none"
"""
EXPERIMENT = """
name = "many"
question = "scaling"
repeats = {repeats}
[axes]
framework = ["numpy_toy"]
model = ["small"]
strategy = ["single_writer"]
format = ["npz_plain"]
nodes = [1]
interval_steps = [2]
[settings]
steps = 3
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a site and an experiment of three runs, and a Slurm that plays along."""
    programs = install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HPCCKPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SBATCH_PARTITION", "wrong")
    (tmp_path / "site.toml").write_text(SITE.format(base=tmp_path))
    (tmp_path / "many.toml").write_text(EXPERIMENT.format(repeats=3))
    return tmp_path


def submit(base: Path, *more: str) -> int:
    return main(["submit", str(base / "many.toml"), "--site", str(base / "site.toml"), *more])


def the_campaign(base: Path) -> Campaign:
    return campaign.newest(base / "runs")


def run_dirs(base: Path) -> list[RunDir]:
    owner = the_campaign(base)
    return [owner.run_dir(run_id) for run_id in owner.ledger.runs]


def gone(base: Path, run_dir: RunDir) -> None:
    """Slurm has the run's job no longer."""
    known = reconcile.handed(run_dir)
    assert known is not None
    (base / "slurm" / "jobs" / known.job_id).unlink()


def test_every_run_is_one_job_with_its_own_script(base: Path) -> None:
    assert submit(base) == ExitCode.OK
    scripts = sorted(line.split()[1] for line in calls(base / "slurm", "sbatch"))
    assert scripts == sorted(str(run_dir.script) for run_dir in run_dirs(base))
    assert sorted(found.job_id for found in map(reconcile.handed, run_dirs(base)) if found) == ["1", "2", "3"]


def test_nothing_of_the_callers_own_job_reaches_sbatch(base: Path) -> None:
    submit(base)
    assert (base / "slurm" / "leaked").read_text() == ""
    assert os.environ["SLURM_JOB_ID"] == "77", "the caller's own environment is as it was"


def test_submitting_again_submits_nothing_twice(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(base)
    assert submit(base) == ExitCode.OK
    assert "3 runs of this campaign in Slurm's hands already" in capsys.readouterr().out
    assert len(calls(base / "slurm", "sbatch")) == 3


def test_the_limit_holds_runs_back_and_resume_goes_on(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(base, "--max-queued", "2")
    assert "1 runs held back by the limit of 2" in capsys.readouterr().out
    assert len(calls(base / "slurm", "sbatch")) == 2
    assert main(["resume", "--max-queued", "2"]) == ExitCode.OK
    assert len(calls(base / "slurm", "sbatch")) == 2, "both are still in the queue"
    first = next(run_dir for run_dir in run_dirs(base) if reconcile.handed(run_dir))
    first.write_state(state=RUNNING)
    first.write_state(state=FAILED, reason="planted")
    main(["resume", "--max-queued", "2"])
    assert len(calls(base / "slurm", "sbatch")) == 3


def test_two_hundred_runs_are_no_storm(base: Path) -> None:
    (base / "many.toml").write_text(EXPERIMENT.format(repeats=200))
    assert submit(base) == ExitCode.OK
    assert len(calls(base / "slurm", "sbatch")) == 200
    assert calls(base / "slurm", "squeue") == calls(base / "slurm", "sacct") == []
    for run_dir in run_dirs(base)[:150]:
        gone(base, run_dir)
    main(["status"])
    assert len(calls(base / "slurm", "squeue")) == 1
    assert len(calls(base / "slurm", "sacct")) == 1


def test_a_job_that_vanished_is_marked_with_slurms_words(base: Path) -> None:
    submit(base)
    running, waiting, still = run_dirs(base)
    running.write_state(state=RUNNING, driver_host="node3")
    numbers = [found.job_id for found in map(reconcile.handed, (running, waiting)) if found]
    (base / "slurm" / "accounts").write_text(
        f"{numbers[0]}|NODE_FAIL|1:0|node3\n{numbers[1]}|CANCELLED by 0|0:15|None assigned\n"
    )
    gone(base, running)
    gone(base, waiting)
    main(["status"])
    assert running.read_state().state == waiting.read_state().state == INTERRUPTED
    assert "NODE_FAIL, exit status 1 on node3; its driver on node3 left no end" in str(running.read_state().reason)
    assert "CANCELLED by 0, signal 15" in str(waiting.read_state().reason)
    assert still.read_state().state == QUEUED
    assert main(["resume"]) == ExitCode.OK
    assert len(calls(base / "slurm", "sbatch")) == 5, "the two that vanished, and no other"


def test_without_accounting_it_is_marked_all_the_same(base: Path) -> None:
    submit(base)
    first = run_dirs(base)[0]
    first.write_state(state=RUNNING)
    gone(base, first)
    main(["status"])
    assert "is gone, and nothing accounts for it" in str(first.read_state().reason)


def test_a_script_that_fails_before_its_driver_is_a_failed_run(base: Path) -> None:
    submit(base)
    first = run_dirs(base)[0]
    known = reconcile.handed(first)
    assert known is not None
    (base / "slurm" / "accounts").write_text(f"{known.job_id}|FAILED|3:0|node1\n")
    (first.log / "job.log").write_text("Lmod: unknown module gcc/99\n")
    gone(base, first)
    main(["status"])
    assert first.read_state().state == FAILED
    assert "the driver did not start: Lmod: unknown module gcc/99" in str(first.read_state().reason)


def test_a_slurm_that_does_not_answer_changes_nothing(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(base)
    first = run_dirs(base)[0]
    first.write_state(state=RUNNING)
    gone(base, first)
    (base / "slurm" / "silent").touch()
    assert main(["status"]) == ExitCode.OK
    assert "Slurm does not answer" in capsys.readouterr().out
    assert first.read_state().state == RUNNING
    assert main(["cancel"]) == ExitCode.REFUSED
    assert first.read_state().state == RUNNING


def test_a_job_whose_submitter_died_is_adopted(base: Path) -> None:
    submit(base)
    first = run_dirs(base)[0]
    first.submission.unlink()
    submit(base)
    assert len(calls(base / "slurm", "sbatch")) == 3
    assert reconcile.handed(first) is not None


def test_a_refusal_says_slurms_words_and_the_script(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "slurm" / "refuse").write_text("sbatch: error: invalid partition specified: main\n")
    assert submit(base) == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert "invalid partition specified: main" in said
    assert str(run_dirs(base)[0].script) in said
    (base / "slurm" / "refuse").unlink()
    assert submit(base) == ExitCode.OK
    assert len(calls(base / "slurm", "sbatch")) == 4


def test_cancelling_cancels_all_at_once(base: Path) -> None:
    submit(base)
    done, *rest = run_dirs(base)
    done.write_state(state=RUNNING)
    done.write_state(state=DONE)
    gone(base, done)
    assert main(["cancel"]) == ExitCode.OK
    assert len(calls(base / "slurm", "scancel")) == 1
    assert {run_dir.read_state().state for run_dir in rest} == {INTERRUPTED}
    assert done.read_state().state == DONE


def test_status_tells_machines_what_slurm_says(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(base)
    capsys.readouterr()
    main(["status", "--json"])
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["slurm"] for row in rows] == [f"Slurm job {n}: pending (Priority)" for n in (1, 2, 3)]


def test_a_machine_without_slurm_is_refused_before_anything_is_written(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jobs.slurm.shutil", SimpleNamespace(which=lambda name: None))
    assert submit(base) == ExitCode.REFUSED
    assert "no sbatch on PATH" in capsys.readouterr().err
    assert not (base / "runs").exists()


def test_an_interrupted_run_whose_job_waits_to_start_again_is_left_to_it(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(base)
    first = run_dirs(base)[0]
    first.write_state(state=RUNNING)
    first.write_state(state=INTERRUPTED, reason="stopped on request")
    capsys.readouterr()
    assert submit(base) == ExitCode.OK
    said = capsys.readouterr().out
    assert len(calls(base / "slurm", "sbatch")) == 3
    assert "3 runs of this campaign in Slurm's hands already" in said
    assert "everything is done" not in said
    main(["status"])
    assert "interrupted" in (text := capsys.readouterr().out)
    assert text.count("Slurm job") == 3


def test_a_job_whose_input_was_never_put_in_place_is_replaced(base: Path) -> None:
    submit(base)
    first = run_dirs(base)[0]
    known = reconcile.handed(first)
    assert known is not None
    first.submission.unlink()
    (first.log / f"{known.job_id}_submitted.pkl").unlink()
    assert submit(base) == ExitCode.OK
    assert calls(base / "slurm", "scancel") == [f"scancel {known.job_id}"]
    assert len(calls(base / "slurm", "sbatch")) == 4


def test_looking_needs_no_lock_and_hides_no_job(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submit(base)
    lock = Lock(the_campaign(base).paths.lock)
    assert lock.take()
    try:
        capsys.readouterr()
        assert main(["status"]) == ExitCode.OK
    finally:
        lock.release()
    assert capsys.readouterr().out.count("pending (Priority)") == 3


def test_a_disk_that_takes_nothing_does_not_keep_anybody_from_looking(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(base)
    gone(base, run_dirs(base)[0])

    def full(self: Lock) -> bool:
        raise SubmitError(f"{self.path}: cannot be written (No space left on device)")

    monkeypatch.setattr(Lock, "take", full)
    assert main(["status"]) == ExitCode.OK
    assert "could not be noted" in capsys.readouterr().err


def test_a_corrected_site_holds_for_the_runs_that_are_left(base: Path) -> None:
    file = base / "site.toml"
    file.write_text(SITE.format(base=base) + 'launcher_args = ["--bogus"]\n')
    submit(base)
    first = run_dirs(base)[0]
    gone(base, first)
    first.write_state(state=RUNNING)
    first.write_state(state=FAILED, reason="planted")
    file.write_text(SITE.format(base=base))
    assert submit(base, "--retry") == ExitCode.OK
    assert json.loads(first.run.read_bytes())["site"]["launcher_args"] == []
    assert the_campaign(base).ledger.site["launcher_args"] == []


def test_a_refused_retry_keeps_what_was_known_of_the_run(base: Path) -> None:
    submit(base)
    first = run_dirs(base)[0]
    gone(base, first)
    first.write_state(state=RUNNING)
    first.write_state(state=FAILED, reason="planted")
    (base / "slurm" / "refuse").write_text("sbatch: error: no\n")
    assert submit(base, "--retry") == ExitCode.REFUSED
    assert (first.read_state().state, first.read_state().reason) == (FAILED, "planted")


def test_a_job_leaves_a_run_alone_that_another_was_given(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(base)
    first = run_dirs(base)[0]
    monkeypatch.setenv("SLURM_JOB_ID", "999")
    with pytest.raises(RunError, match=r"given to Slurm job .*; this is job 999, and leaves it alone"):
        Driver(first.path)()
    assert first.read_state().state == QUEUED


def test_a_silent_slurm_says_nothing_about_jobs_being_gone(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch, "GONE_S", 0.5)
    monkeypatch.setattr(batch, "LOOK_S", 0.1)
    submit(base)
    (base / "slurm" / "bin" / "scancel").write_text(f"#!/bin/sh\ntouch {base}/slurm/silent\n")
    assert main(["cancel"]) == ExitCode.REFUSED
    assert "Slurm still has jobs" in capsys.readouterr().err
    assert {run_dir.read_state().state for run_dir in run_dirs(base)} == {QUEUED}


def test_a_failed_run_is_repeated_though_its_job_is_still_cleaned_up(base: Path) -> None:
    submit(base)
    first = run_dirs(base)[0]
    first.write_state(state=RUNNING)
    first.write_state(state=FAILED, reason="planted")
    assert submit(base, "--retry") == ExitCode.OK
    assert len(calls(base / "slurm", "sbatch")) == 4
