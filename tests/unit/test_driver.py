"""The driver with ranks that need no MPI: every way a leg can end, and what the state file says then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcckpt.experiment import Job
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RunDir, State, read_json, write_json
from jobs import driver, launch, launchers, preflight
from jobs.driver import Driver
from tests.support import make_run

FAKE = Path(__file__).with_name("fake_ranks.py")


class FakeDriver(Driver):
    rank_module = "tests.unit.fake_ranks"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A queued run of three ranks whose launcher is the fake one."""
    fake = launchers.Launcher(command="fake", one_machine=("-n", "{ranks}"), many_nodes=(), version="")
    script = tmp_path / "launcher"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(launchers, "find", lambda *_: launchers.Found(fake, str(script), "fake 1"))
    monkeypatch.setattr(launch, "HUNG_GRACE_S", 0.1)
    monkeypatch.setattr(launch, "TERM_GRACE_S", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parents[2]))
    return queued(tmp_path, leg_limit_s=30.0)


def queued(base: Path, **settings: Any) -> RunDir:
    run = make_run(settings=settings, nodes=3)
    paths = RunDir(base / run.run_id)
    site = {"executor": "local", "launcher": "fake", "launcher_args": [], "environment": {}}
    scratch = str(base / "scratch" / "campaign" / run.run_id)
    job = Job(run=run, campaign="c", site=site, scratch=scratch, virtual_nodes=True, tracer="none")
    write_json(paths.run, job)
    write_json(paths.state, State(state=QUEUED, updated=time.time()))
    return paths


def drive(paths: RunDir, monkeypatch: pytest.MonkeyPatch, fake: str) -> State:
    monkeypatch.setenv("FAKE", fake)
    FakeDriver(paths.path)()
    return paths.read_state()


def rank_processes(paths: RunDir) -> str:
    listed = subprocess.run(["pgrep", "-f", str(paths.path)], capture_output=True, text=True, check=False)
    return listed.stdout


def test_a_run_is_done_when_every_rank_is(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    state = drive(run_dir, monkeypatch, "ok")
    assert (state.state, state.reason, state.attempts) == (DONE, None, 1)
    assert {"queue_wait", "launch_train", "ranks_control", "conversion", "own"} <= set(state.timings_s)
    assert run_dir.manifest.exists()
    job: Job = read_json(run_dir.run, Job)
    assert not Path(job.scratch).parent.exists(), "scratch and the campaign's empty directory are removed"


@pytest.mark.parametrize(
    ("fake", "cause", "words"),
    [
        ("raise:1", "ValueError", "rank 1 on virtual001 failed in leg control, inside save: ValueError: "),
        ("kill:2", "SIGKILL", "rank 2 on virtual002 was killed by SIGKILL in leg control"),
        ("exit:0", "exit 7", "rank 0 on virtual000 left with exit status 7 in leg control"),
    ],
)
def test_a_failure_names_rank_node_and_cause(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, fake: str, cause: str, words: str
) -> None:
    state = drive(run_dir, monkeypatch, fake)
    assert (state.state, state.cause, state.rank) == (FAILED, cause, int(fake[-1]))
    assert state.node == f"virtual{int(fake[-1]):03d}"
    assert words in str(state.reason)
    assert not run_dir.leg("train").path.exists(), "no leg after a failed one"


@pytest.mark.parametrize("fake", ["hang:1", "deaf:1"])
def test_a_rank_that_hangs_is_found_and_ended(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, fake: str
) -> None:
    paths = queued(tmp_path / "short", leg_limit_s=2.0)
    state = drive(paths, monkeypatch, fake)
    assert (state.state, state.cause, state.rank, state.node) == (FAILED, "hung", 1, "virtual001")
    assert rank_processes(paths) == ""


def test_the_stop_file_interrupts(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    threading.Timer(1.5, run_dir.stop.touch).start()
    state = drive(run_dir, monkeypatch, "slow")
    assert (state.state, state.reason) == (INTERRUPTED, "stopped on request in leg control")


def test_a_stop_file_that_is_there_already_starts_no_rank(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.stop.touch()
    assert drive(run_dir, monkeypatch, "ok").state == INTERRUPTED
    assert not run_dir.legs.exists()


def test_two_signals_stop_at_once(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for delay in (1.5, 1.7):
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    state = drive(run_dir, monkeypatch, "hang:0")
    assert state.state == INTERRUPTED
    assert time.monotonic() - began < 1.7 + launch.STOP_GRACE_S
    assert rank_processes(run_dir) == ""


def test_the_requeue_signal_hands_on_to_the_scheduler(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setenv("FAKE", "slow")
    before = signal.signal(signal.SIGUSR2, lambda *_: asked.append(FakeDriver(run_dir.path).checkpoint()))
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    try:
        FakeDriver(run_dir.path)()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert run_dir.read_state().state == QUEUED
    assert len(asked) == 1
    assert not run_dir.stop.exists(), "the next start must not stop at once"


def test_no_room_is_refused_with_both_numbers(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "bytes_needed", lambda run: 1 << 60)
    state = drive(run_dir, monkeypatch, "ok")
    assert (state.state, state.cause) == (FAILED, "refused")
    assert f"{1 << 60} bytes needed" in str(state.reason)
    assert "bytes free" in str(state.reason)
    assert not run_dir.legs.exists()


def test_a_run_whose_driver_fails_says_so(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scratch: Path) -> dict[str, Any]:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(driver.environment, "manifest", broken)
    monkeypatch.setenv("FAKE", "ok")
    with pytest.raises(ZeroDivisionError):
        FakeDriver(run_dir.path)()
    state = run_dir.read_state()
    assert (state.state, state.cause) == (FAILED, "ZeroDivisionError")


def test_checkpoints_are_kept_where_the_run_says_so(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = queued(tmp_path / "keep", keep_files=True)
    assert drive(paths, monkeypatch, "ok").state == DONE
    job: Job = read_json(paths.run, Job)
    assert Path(job.scratch).is_dir()


def test_a_driver_is_only_its_path(tmp_path: Path) -> None:
    assert vars(Driver(tmp_path)) == {"run_dir": str(tmp_path)}


def test_a_killed_driver_leaves_no_rank(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "hang:0")
    script = f"""
from jobs import launchers
from tests.unit.test_driver import FakeDriver
fake = launchers.Launcher(command="fake", one_machine=("-n", "{{ranks}}"), many_nodes=(), version="")
launchers.find = lambda *_: launchers.Found(fake, {str(run_dir.path.parent / "launcher")!r}, "fake 1")
FakeDriver({str(run_dir.path)!r})()
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    first = run_dir.leg("control").rank_file(2)
    until(lambda: first.exists() and first.stat().st_size > 0)
    process.kill()
    process.wait()
    until(lambda: rank_processes(run_dir) == "")
    assert run_dir.read_state().state == "running"


def until(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_run_json_is_all_that_a_driver_needs(run_dir: RunDir) -> None:
    job: Job = read_json(run_dir.run, Job)
    assert msgspec.convert(msgspec.to_builtins(job), Job) == job


def taken_away(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, fake: str) -> State:
    """One start of the run that the scheduler takes away while its ranks are at work."""
    monkeypatch.setenv("FAKE", fake)
    asked: list[object] = []

    def handler(*_: object) -> None:
        asked.append(FakeDriver(run_dir.path).checkpoint())

    before = signal.signal(signal.SIGUSR2, handler)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    try:
        FakeDriver(run_dir.path)()
    finally:
        signal.signal(signal.SIGUSR2, before)
    return run_dir.read_state()


def test_a_run_that_never_comes_further_is_given_up(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_IDLE_STARTS", 1)
    first = taken_away(run_dir, monkeypatch, "slow")
    assert (first.state, first.standstill) == (QUEUED, 0)
    assert first.progress == "leg control, before its first checkpoint"
    second = taken_away(run_dir, monkeypatch, "slow")
    assert (second.state, second.cause) == (FAILED, "no progress")
    assert "started 2 times without coming further than leg control" in str(second.reason)


def test_a_state_file_that_is_lost_meanwhile_costs_no_run(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    threading.Timer(0.3, run_dir.state.unlink).start()
    assert drive(run_dir, monkeypatch, "ok").state == DONE


def test_a_request_to_stop_that_comes_too_late_leaves_no_checkpoints(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    job: Job = read_json(run_dir.run, Job)
    attempt = driver.Attempt(run_dir, driver.Request(run_dir.stop), FakeDriver.rank_module)
    monkeypatch.setenv("FAKE", "ok")
    legs = attempt._legs

    def late() -> object:
        ending = legs()
        run_dir.stop.touch()
        return ending

    monkeypatch.setattr(attempt, "_legs", late)
    assert attempt.run() == DONE
    assert not Path(job.scratch).exists()


def test_a_start_after_a_requeue_is_not_stopped_by_the_last_ones_stop(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.stop.touch()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert drive(run_dir, monkeypatch, "ok").state == DONE
