"""Campaigns that something happened to: lost and broken files, killed submitters, what cannot be written."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from hpcckpt.errors import SpecError, SubmitError
from hpcckpt.records import End, encode
from hpcckpt.rundir import DONE, INTERRUPTED, QUEUED, RUNNING, RunDir, State, write_json
from hpcckpt.tracing.io.base import Absent
from hpcckpt.tracing.io.darshan import DarshanTracer
from jobs import __main__ as cli
from jobs import campaign, identity
from jobs.campaign import Campaign
from jobs.lock import Lock, of_machine
from jobs.progress import Plain
from jobs.site import Site
from jobs.submission import Submission
from tests.support import ROOT
from tests.unit.test_campaign import LOCAL, created, finish, planned

TOY = """
name = "toy"
question = "scaling"
[axes]
framework = ["numpy_toy"]
strategy = ["single_writer"]
format = ["npz_plain"]
nodes = [1]
"""
SUBMIT = ["submit", "./toy.toml", "--site", "local", "--tracer", "none"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory, a machine lock and an identity of the test's own."""
    monkeypatch.setattr(identity, "of_site", lambda *_: {"site": "local", "launcher": "mpirun 1"})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("HPCCKPT_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.toml").write_text(TOY)


def close(owner: Campaign) -> None:
    """Give every run its closing lines."""
    for run_id in owner.ledger.runs:
        job, run_dir = owner.job(run_id), owner.run_dir(run_id)
        assert job is not None
        for leg in map(run_dir.leg, job.run.legs):
            leg.ranks.mkdir(parents=True, exist_ok=True)
            for rank in range(job.run.ranks):
                leg.rank_file(rank).write_bytes(encode(End(t_ns=0, status="ok", error=None, inside=[])))


def done(tmp_path: Path) -> Campaign:
    owner = created(tmp_path)
    finish(owner)
    close(owner)
    return owner


def driven_by(pid: int, host: str | None = None) -> State:
    started = psutil.Process(pid).create_time()
    return State(
        state=RUNNING, driver_pid=pid, driver_host=host or socket.gethostname(), driver_start=started
    )


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


# ---- two places, one machine


def test_campaigns_of_one_name_in_two_places_share_no_checkpoints(tmp_path: Path) -> None:
    made = planned(tmp_path)
    first, second = (campaign.jobs_of(made, tmp_path / place / "c")[0].scratch for place in "ab")
    assert first != second
    assert Path(first).parent.parent == tmp_path / "scratch"
    assert Path(first).parent.name.startswith("c-")


def test_the_machine_is_locked_wherever_campaigns_are_kept(tmp_path: Path, capsys: Any) -> None:
    assert of_machine("my/site").path.parent == tmp_path
    one, other = of_machine("local"), of_machine("local")
    assert one.take()
    assert not other.take()
    submission = Submission(created(tmp_path), LOCAL, [], Plain())
    submission._pass = one.release  # type: ignore[method-assign]
    with submission._machine():
        assert not other.take()
    assert f"has the machine (submitted by process {psutil.Process().pid} on" in capsys.readouterr().out


# ---- a submitter that was killed


def test_a_run_of_a_killed_submitter_is_waited_for_and_settled(tmp_path: Path, capsys: Any) -> None:
    owner = done(tmp_path)
    run_dir = owner.run_dir(owner.ledger.runs[0])
    job = owner.job(owner.ledger.runs[0])
    assert job is not None
    Path(job.scratch).mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"]) as driver:
        write_json(run_dir.state, driven_by(driver.pid))
        assert Submission(owner, LOCAL, [], Plain()).run() == 4
        assert driver.poll() is not None or psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE
    said = capsys.readouterr().out
    assert f"still runs under driver {driver.pid}" in said
    assert "submit again to go on" in said
    assert run_dir.read_state().state == INTERRUPTED
    assert not Path(job.scratch).exists(), "a killed driver leaves its checkpoints to whoever settles"


def test_everything_is_done_is_not_said_of_a_run_under_way(tmp_path: Path, capsys: Any) -> None:
    owner = done(tmp_path)
    write_json(owner.run_dir(owner.ledger.runs[0]).state, driven_by(psutil.Process().pid))
    assert run("resume", "--runs", str(tmp_path / "runs")) == 0
    said = capsys.readouterr().out
    assert f"1 run still runs under driver {psutil.Process().pid}" in said
    assert "everything is done" not in said


def test_cancel_removes_what_a_killed_driver_left(tmp_path: Path) -> None:
    owner = created(tmp_path)
    jobs = [owner.job(run_id) for run_id in owner.ledger.runs]
    scratch = Path(jobs[0].scratch if jobs[0] else "")
    scratch.mkdir(parents=True)
    write_json(owner.run_dir(owner.ledger.runs[0]).state, State(state=RUNNING))
    assert run("cancel", "--runs", str(tmp_path / "runs")) == 0
    assert not scratch.exists()
    assert {state.state for state in owner.states().values()} == {INTERRUPTED}


# ---- files that are gone or broken


def test_done_takes_the_closing_lines_too(tmp_path: Path) -> None:
    owner = done(tmp_path)
    assert owner.finished()
    lost = owner.run_dir(owner.ledger.runs[1])
    shutil.rmtree(lost.legs)
    assert owner.pending(retry=False) == [owner.ledger.runs[1]]
    assert not owner.finished()
    job = owner.job(owner.ledger.runs[1])
    assert job is not None
    campaign.clear(lost, job, msgspec.convert(job.site, Site))
    assert lost.read_state().state == QUEUED


def break_first(owner: Campaign, how: str) -> RunDir:
    run_dir = owner.run_dir(owner.ledger.runs[0])
    if how == "removed":
        shutil.rmtree(run_dir.path)
    elif how == "no run.json":
        run_dir.run.unlink()
    else:
        run_dir.state.write_text(how)
    return run_dir


@pytest.mark.parametrize("how", ["removed", "no run.json", "{", '{"state": "finished"}'])
def test_status_and_cancel_go_on_without_one_runs_files(tmp_path: Path, how: str, capsys: Any) -> None:
    owner = created(tmp_path)
    break_first(owner, how)
    for command in (["status"], ["status", "--json"], ["cancel"], ["status"]):
        assert run(*command, "--runs", str(tmp_path / "runs")) == 0
    said = capsys.readouterr().out
    assert ("remove the run directory to repeat it" in said) == how.startswith("{")
    assert ('"unreadable": 1' in said) == how.startswith("{")


@pytest.mark.parametrize("how", ["removed", "no run.json"])
def test_a_lost_run_is_written_again_as_the_ledger_has_it(tmp_path: Path, how: str) -> None:
    owner = done(tmp_path)
    before = owner.job(owner.ledger.runs[0])
    break_first(owner, how)
    assert owner.ledger.runs[0] in owner.pending(retry=False)
    campaign.create(replace(planned(tmp_path), scratch=tmp_path / "elsewhere"), owner.paths.path)
    assert owner.job(owner.ledger.runs[0]) == before
    assert len(owner.pending(retry=False)) == (1 if how == "removed" else 0)


def test_an_unreadable_run_is_left_out_and_counts_as_not_done(tmp_path: Path, capsys: Any) -> None:
    owner = done(tmp_path)
    break_first(owner, "{")
    assert run("resume", "--runs", str(tmp_path / "runs")) == 4
    said = capsys.readouterr().out
    assert "left out: " in said
    assert "everything is done" not in said


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_broken_ledger_is_said_with_the_next_step(tmp_path: Path, content: str, capsys: Any) -> None:
    owner = created(tmp_path)
    owner.paths.ledger.write_text(content)
    for command in ("status", "resume", "cancel"):
        assert run(command, "--runs", str(tmp_path / "runs")) == 2
        assert "'submit --new' begins another campaign" in capsys.readouterr().err
    with pytest.raises(SpecError, match="submit --new"):
        campaign.place(planned(tmp_path), tmp_path / "runs", new=False)
    path, exists = campaign.place(planned(tmp_path), tmp_path / "runs", new=True)
    assert (path.name, exists) == (f"{owner.name}-2", False)


# ---- what cannot be written or read


def test_a_runs_directory_that_is_a_file_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "runs").touch()
    assert run(*SUBMIT) == 3
    said = capsys.readouterr().err
    assert "cannot be written" in said
    assert said.count("\n") == 1
    with pytest.raises(SubmitError, match="cannot be written"):
        campaign.create(planned(tmp_path), tmp_path / "runs" / "c")
    with pytest.raises(SubmitError, match="cannot be written"):
        Lock(tmp_path / "runs" / "lock").take()


@pytest.mark.parametrize(("command", "code"), [(SUBMIT, 3), (["status"], 2)])
def test_any_other_trouble_with_files_is_one_sentence(
    command: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def trouble(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/x/y")

    monkeypatch.setattr(campaign, "candidates", trouble)
    monkeypatch.setattr(campaign, "newest", trouble)
    assert run(*command) == code
    assert capsys.readouterr().err == "python -m jobs: /x/y: Permission denied\n"


@pytest.mark.parametrize(("target", "code", "lines"), [("/dev/full", 2, 1), ("closed pipe", 0, 0)])
def test_output_that_nobody_can_take(tmp_path: Path, target: str, code: int, lines: int) -> None:
    created(tmp_path)
    command = [sys.executable, "-m", "jobs", "status", "--runs", str(tmp_path / "runs")]
    redirect = f"exec >{target}" if target == "/dev/full" else "exec > >(exec true); sleep 0.3"
    shell = ["bash", "-c", f'{redirect}; exec "$@"', "bash", *command]
    ended = subprocess.run(shell, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (code, lines), ended.stderr


# ---- options


def test_a_tracer_that_is_gone_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made = replace(planned(tmp_path), tracer="darshan", site=replace_library("/site/libdarshan.so"))
    campaign.create(made, tmp_path / "runs" / "c")
    monkeypatch.setattr(DarshanTracer, "find", lambda option, environ: Absent("not today"))
    assert run("resume", "--runs", str(tmp_path / "runs"), "--wait") == 2
    said = capsys.readouterr().err
    assert "was begun with tracer darshan (/site/libdarshan.so): tracer darshan: not today" in said


def replace_library(library: str) -> Any:
    return msgspec.structs.replace(LOCAL, darshan_lib=library)


@pytest.mark.parametrize("value", ["", " ", "/x/$NOT_SET_ANYWHERE"])
def test_what_is_wrong_with_scratch_is_said_of_the_option(value: str, capsys: Any) -> None:
    assert run(*SUBMIT, "--scratch", value) == 2
    said = capsys.readouterr().err
    assert "--scratch" in said
    assert "site" not in said


def test_the_runs_directory_may_be_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    owner = done(tmp_path)
    assert DONE in {state.state for state in owner.states().values()}
    monkeypatch.setenv("HPCCKPT_RUNS", str(owner.paths.path.parent))
    monkeypatch.chdir("/")
    assert run("status") == 0
    assert f"campaign {owner.name}" in capsys.readouterr().out
