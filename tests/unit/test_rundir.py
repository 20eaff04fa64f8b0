"""States of a run, atomic files, and what is said about files that are not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt import rundir
from hpcckpt.errors import RunError, TraceError
from hpcckpt.records import SCHEMA_VERSION


def test_a_run_goes_from_queued_to_done_and_stays(tmp_path: Path) -> None:
    run = rundir.RunDir(tmp_path / "r")
    assert run.read_state().state == rundir.QUEUED
    run.write_state(state=rundir.RUNNING, leg="train")
    run.write_state(state=rundir.DONE)
    assert run.read_state().leg == "train", "a change keeps the other fields"
    with pytest.raises(RunError, match="a run that is done cannot become running"):
        run.write_state(state=rundir.RUNNING)


@pytest.mark.parametrize("ended", [rundir.FAILED, rundir.INTERRUPTED])
def test_an_ended_run_must_be_queued_again_first(tmp_path: Path, ended: str) -> None:
    run = rundir.RunDir(tmp_path)
    run.write_state(state=ended, reason="rank 3 on node7: SIGKILL")
    with pytest.raises(RunError):
        run.write_state(state=rundir.RUNNING)
    run.write_state(state=rundir.QUEUED)
    run.write_state(state=rundir.RUNNING)


def test_a_broken_state_file_is_named_and_never_counts_as_done(tmp_path: Path) -> None:
    run = rundir.RunDir(tmp_path)
    run.state.write_text('{"state": "do')
    with pytest.raises(RunError, match=r"state\.json: not a state file .* remove the run directory"):
        run.read_state()


def test_a_state_that_nobody_knows_or_can_read_is_named(tmp_path: Path) -> None:
    run = rundir.RunDir(tmp_path)
    run.state.write_text('{"state": "finished"}')
    with pytest.raises(RunError, match="unknown state 'finished'"):
        run.write_state(state=rundir.QUEUED)
    run.state.unlink()
    run.state.mkdir()
    with pytest.raises(RunError, match=r"state\.json: not a state file \(Is a directory\)"):
        run.read_state()
    with pytest.raises(TraceError, match=r"state\.json: cannot be read \(Is a directory\)"):
        rundir.read_json(run.state)
    with pytest.raises(TraceError, match=r"run\.json: cannot be read \(No such file or directory\)"):
        rundir.read_json(run.run)


def test_write_leaves_the_old_content_until_the_new_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    rundir.write_json(path, {"a": 1})
    monkeypatch.setattr(rundir.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        rundir.write_json(path, {"a": 2})
    assert rundir.read_json(path)["a"] == 1


def test_another_schema_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"schema_version": 99}')
    with pytest.raises(TraceError, match=f"schema version 99, this release reads {SCHEMA_VERSION}"):
        rundir.read_json(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b'"text"'])
def test_foreign_json_is_an_error_with_the_file_s_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"run\.json"):
        rundir.read_json(path)
