"""Campaigns on this machine as a person runs them: `python -m jobs`, real mpirun, the toy framework."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED
from tests.support import ROOT

pytestmark = pytest.mark.integration

TOY = """
name = "toy"
question = "scaling"
repeats = 1
[axes]
framework = ["numpy_toy"]
strategy = ["single_writer"]
format = ["npz_plain"]
nodes = [1, 2]
[settings]
steps = {steps}
leg_limit_s = {limit}
drain_limit_s = 0.0
{faults}
"""
SLOW = '[[faults]]\nrank = 0\nat = "step"\naction = "sleep"\nseconds = 0.5\n'
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Shell:
    """A directory with an experiment, and the commands a person types there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def experiment(self, faults: str = "", steps: int = 5, limit: float = 60.0) -> None:
        (self.folder / "toy.toml").write_text(TOY.format(faults=faults, steps=steps, limit=limit))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command in a process group of its own, as a terminal starts it."""
        command = [sys.executable, "-m", "jobs", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=ENVIRONMENT, text=True, process_group=0,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str]:
        """(exit code, all output)."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=200)
        return process.returncode, output

    def submit(self, *arguments: str) -> tuple[int, str]:
        return self.run("submit", "./toy.toml", "--tracer", "none", *arguments)

    def status(self) -> dict[str, Any]:
        code, output = self.run("status", "--json")
        assert code == 0, output
        plain: dict[str, Any] = json.loads(output)
        return plain

    def states(self) -> list[dict[str, Any]]:
        files = self.folder.glob("runs/toy-*/*/state.json")
        return [json.loads(file.read_text()) for file in sorted(files)]

    def processes(self) -> list[psutil.Process]:
        """Ranks, launchers and drivers that belong to this directory."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def drivers(self) -> list[psutil.Process]:
        return [process for process in self.processes() if "submitit.core._submit" in process.cmdline()]

    def in_step(self) -> bool:
        """Whether some rank trains."""
        return any('"step"' in file.read_text() for file in self.folder.glob("runs/*/*/legs/*/ranks/*.jsonl"))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.experiment()
    return made


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_a_campaign_from_dry_run_to_done(shell: Shell) -> None:
    code, scripts = shell.submit("--dry-run")
    assert code == 0
    assert [path.name for path in shell.folder.iterdir()] == ["toy.toml"], "a dry run writes nothing"

    code, output = shell.submit("--wait")
    assert code == 0, output
    assert "run 2 of 2" in output
    assert "virtual nodes" in output
    assert {state["state"] for state in shell.states()} == {DONE}
    written = [path.read_text() for path in shell.folder.glob("runs/toy-*/*/job.sh")]
    assert len(written) == 2
    assert all(text in scripts for text in written), "a dry run prints the exact scripts"
    assert list((shell.folder / "scratch").iterdir()) == []
    assert shell.processes() == []
    assert max(state["timings_s"]["own"] for state in shell.states()) < 5.0

    code, output = shell.submit("--wait")
    assert code == 0
    assert "everything is done" in output
    assert {state["attempts"] for state in shell.states()} == {1}
    status = shell.status()
    assert status["counts"][DONE] == 2
    assert status["virtual_nodes"] is True


def test_a_killed_rank_fails_its_run_and_no_other(shell: Shell) -> None:
    shell.experiment('[[faults]]\nrank = 1\nat = "step"\naction = "kill"\ngeneration = 3\n')
    code, output = shell.submit("--wait")
    assert code == 4, output
    by_state = {state["state"]: state for state in shell.states()}
    assert set(by_state) == {DONE, FAILED}, "the run with one rank has no rank 1 to kill"
    failed = by_state[FAILED]
    assert (failed["rank"], failed["node"], failed["cause"]) == (1, "virtual001", "SIGKILL")

    code, output = shell.submit("--wait")
    assert code == 4
    assert "not repeated without --retry" in output
    assert "was killed by SIGKILL" in output
    assert sorted(state["attempts"] for state in shell.states()) == [1, 1]

    code, output = shell.run("resume", "--retry", "--wait")
    assert code == 4
    assert sorted(state["attempts"] for state in shell.states()) == [1, 2]


def test_a_hung_rank_is_named(shell: Shell) -> None:
    shell.experiment('[[faults]]\nrank = 1\nat = "before_save"\naction = "hang"\ngeneration = 1\n', limit=8.0)
    code, output = shell.submit("--wait")
    assert code == 4, output
    failed = next(state for state in shell.states() if state["state"] == FAILED)
    assert (failed["rank"], failed["node"], failed["cause"]) == (1, "virtual001", "hung")
    assert shell.processes() == []


def test_ctrl_c_interrupts_and_submitting_again_completes(shell: Shell) -> None:
    shell.experiment(SLOW, steps=7)
    first = shell.start("submit", "./toy.toml", "--tracer", "none", "--wait")
    until(shell.in_step)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: everything in the foreground gets it
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 130, output
    assert sorted(state["state"] for state in shell.states()) == [INTERRUPTED, QUEUED]
    assert shell.processes() == []

    code, output = shell.submit("--wait")
    assert code == 0, output
    assert {state["state"] for state in shell.states()} == {DONE}
    assert sorted(state["attempts"] for state in shell.states()) == [1, 2]


def test_a_second_shell_is_refused_and_a_killed_driver_leaves_no_rank(shell: Shell) -> None:
    shell.experiment(SLOW, steps=7)
    first = shell.start("submit", "./toy.toml", "--tracer", "none", "--wait")
    until(shell.in_step)
    code, output = shell.submit("--wait")
    assert code == 3
    assert f"is being submitted by process {first.pid}" in output

    shell.drivers()[0].kill()
    until(lambda: not [p for p in shell.processes() if "hpcckpt.rank" in p.cmdline()], seconds=10)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 4, output
    assert sorted(state["state"] for state in shell.states()) == [DONE, INTERRUPTED]


def test_a_dead_submission_is_taken_up_again(shell: Shell) -> None:
    shell.experiment(SLOW, steps=7)
    first = shell.start("submit", "./toy.toml", "--tracer", "none", "--wait")
    until(shell.in_step)
    first.kill()
    for process in shell.drivers():
        process.kill()
    first.communicate(timeout=60)
    assert "running" in {state["state"] for state in shell.states()}
    assert "its driver is dead" in shell.run("status")[1]
    until(lambda: not shell.processes(), seconds=10)
    assert shell.submit("--wait")[0] == 0
    assert {state["state"] for state in shell.states()} == {DONE}


def test_in_the_background_it_returns_at_once_and_can_be_cancelled(shell: Shell) -> None:
    shell.experiment(SLOW, steps=7)
    began = time.monotonic()
    code, output = shell.submit()
    assert code == 0
    assert "python -m jobs status" in output
    assert time.monotonic() - began < 10
    until(shell.in_step)
    assert shell.status()["counts"]["running"] == 1
    code, output = shell.run("cancel")
    assert code == 0, output
    assert {state["state"] for state in shell.states()} == {INTERRUPTED}
    assert shell.processes() == []


def test_a_full_scratch_is_refused_before_anything_is_written(shell: Shell) -> None:
    small = shell.folder / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        code, output = shell.submit("--wait", "--scratch", str(small))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert code == 3
    assert "bytes needed, 65536 bytes free" in output
    assert not (shell.folder / "runs").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("framework", "framewrok"), "unknown key 'axes.framewrok'; did you mean 'framework'?"),
        (("numpy_toy", "numpy_tyo"), "unknown framework 'numpy_tyo'; did you mean 'numpy_toy'?"),
    ],
)
def test_a_misspelt_word_is_one_sentence_and_exit_code_2(
    shell: Shell, change: tuple[str, str], words: str
) -> None:
    path = shell.folder / "toy.toml"
    path.write_text(path.read_text().replace(*change))
    code, output = shell.submit()
    assert code == 2
    assert words in output
    assert output.count("\n") == 1
